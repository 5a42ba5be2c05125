//! TLS: a server's certificate and key, from files of PEM.

use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// Files by which a server shows who it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The server's certificate, and those between it and one that clients know, as PEM.
    pub certificate: PathBuf,
    /// The certificate's private key, as PEM.
    pub key: PathBuf,
}

/// A certificate or a key cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or is no PEM.
    #[error("{}: it cannot be read as PEM: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: pem::Error,
    },
    /// A file without a certificate.
    #[error("{}: there is no certificate in it: it is to have -----BEGIN CERTIFICATE-----", .0.display())]
    NoCertificate(PathBuf),
    /// A file without a key that is not encrypted.
    #[error(
        "{}: there is no private key in it: it is to have -----BEGIN PRIVATE KEY-----, and a key that is encrypted is to be \
         decrypted first",
        .0.display()
    )]
    NoKey(PathBuf),
    /// The two do not go together, or are of a kind that is not supported.
    #[error("{} and {} cannot be used together: {reason}", files.certificate.display(), files.key.display())]
    Unusable {
        /// The files.
        files: TlsFiles,
        /// The fault.
        reason: rustls::Error,
    },
}

impl TlsFiles {
    /// Reads the files, for connections that speak `protocol`, a name of ALPN.
    ///
    /// # Errors
    /// They are not what they are to be.
    pub(super) fn acceptor(&self, protocol: &[u8]) -> Result<TlsAcceptor, TlsError> {
        let Self { certificate, key } = self;
        let unread = |path: &PathBuf, reason| TlsError::Read { path: path.clone(), reason };
        let certificates: Result<Vec<_>, _> =
            CertificateDer::pem_file_iter(certificate).and_then(|certificates| certificates.collect());
        let certificates = certificates.map_err(|reason| unread(certificate, reason))?;
        if certificates.is_empty() {
            return Err(TlsError::NoCertificate(certificate.clone()));
        }
        let key = PrivateKeyDer::from_pem_file(key).map_err(|reason| match reason {
            pem::Error::NoItemsFound => TlsError::NoKey(key.clone()),
            reason => unread(key, reason),
        })?;
        let unusable = |reason| TlsError::Unusable { files: self.clone(), reason };
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().map_err(unusable)?.with_no_client_auth();
        let mut config = config.with_single_cert(certificates, key).map_err(unusable)?;
        config.alpn_protocols = vec![protocol.into()];
        Ok(Arc::new(config).into())
    }
}
