//! Models in folders, one folder for each model and named like it. A folder has a `config.toml` and weights as
//! safetensors, or a PyTorch module's code, or it is an unchanged Hugging Face folder.
//!
//! ```toml
//! architecture = "resnet152"        # the registered name of the architecture
//! weights = "model.safetensors"     # or an index of several files: "model.safetensors.index.json"
//! dtype = "float16"                 # of the stored weights; no other works, since nothing is converted yet
//! config = "config.json"            # options of the architecture, or
//! # [options]                       # the same as a table
//! priority = 1                      # from -10 to 10
//! pinned = true                     # weights stay on a device
//! timeout_ms = 2000                 # a request may state less    
//!
//! [[inputs]]
//! name = "image"
//! datatype = "FP32"                 # of the Open Inference Protocol
//! shape = [-1, 3, 224, 224]         # -1: any
//!
//! [[outputs]]
//! name = "logits"
//! datatype = "FP32"
//! shape = [-1, 1000]
//!
//! [batching]                        # along the first dimension
//! max_rows = 32
//! max_delay_ms = 2
//! ```
//!
//! A folder that itself has one of these files is a repository of one model.
//!
//! Only `architecture`, `inputs` and `outputs` have no default. A model has one version, "1".
//!
//! For an unmodified PyTorch module, `python` replaces `architecture`, `options`, `config` and `dtype`; all other keys
//! are as above:
//!
//! ```toml
//! python = "model.py:load"          # a function of a file in the folder, or "package.module:load"
//! weights = "model.safetensors"     # watched for changes only; the function reads any files
//! ```
//!
//! A folder with Hugging Face's `config.json` and no `config.toml` is served as that file says, if a network here
//! computes it: `LlamaForCausalLM`, `GPT2LMHeadModel`, `BertModel`, and sentence-transformers (`modules.json`) whose
//! vectors are averages of a BERT's, normalized to length 1, also if the model is in a subfolder. A Python that has
//! `transformers` computes the others, if the server has one:
//!
//! | classes of `config.json` | take | answer |
//! | --- | --- | --- |
//! | `…ForCausalLM`, `…LMHeadModel`, `…ForConditionalGeneration` without an encoder | `input_ids` | `logits` |
//! | `…ForSequenceClassification`, `…ForTokenClassification` | `input_ids`, `attention_mask` | `logits` |
//! | `…ForMaskedLM` | the same | `logits` |
//! | `…ForQuestionAnswering` | the same | `start_logits`, `end_logits` |
//! | `…Model` of texts | the same | `last_hidden_state` |
//! | `…ForImageClassification` | `pixel_values` | `logits` |
//! | `…Model` of images | `pixel_values` | `last_hidden_state` |
//! | sentence-transformers | `input_ids`, `attention_mask` | `sentence_embedding` |
//!
//! Answers have the datatype of the stored weights. Other folders are broken models, whose error says what is not
//! supported.
//!
//! [`Repository::scan`] reads configurations, and of weights only the size and time; it returns the changes since the
//! last scan. Files may be links that lead to the model's folder or the repository's; a model's folder may be a link to
//! anywhere. A model that cannot be read is listed as broken and does not affect others.

mod config;
mod error;
mod files;
mod hugging_face;
mod model;
mod positions;
mod scan;

pub use config::{Batching, Config, Dimension, PythonFunction, TensorSpec, WeightDtype};
pub use error::RepositoryError;
pub(crate) use hugging_face::{StoredEncoder, check_encoder};
pub use model::{ModelName, StoredModel, WeightFile};
pub use scan::{Broken, Changes, Repository, model_folder};

pub use crate::protocol::Datatype;
