//! Functions of analysis, without branches, so that loops over them are vectorised.
