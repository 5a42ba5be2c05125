//! TLS: a server's certificate and key, from PEM files.

use std::path::PathBuf;
use std::sync::Arc;

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};

/// The files with which a server proves its identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsFiles {
    /// The path of the server's certificate and the intermediate ones up to one that clients know, as PEM.
    pub certificate: PathBuf,
    /// The path of the certificate's private key, as PEM.
    pub key: PathBuf,
}

/// The reason why a certificate or key cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file cannot be read, or is not PEM.
    #[error("{}: it cannot be read as PEM: {reason}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The error.
        reason: pem::Error,
    },
    /// The file has no certificate.
    #[error("{}: it has no certificate: it must contain -----BEGIN CERTIFICATE-----", .0.display())]
    NoCertificate(PathBuf),
    /// The file has no unencrypted private key.
    #[error(
        "{}: there is no private key in it: it must contain -----BEGIN PRIVATE KEY-----; decrypt an encrypted key first",
        .0.display()
    )]
    NoKey(PathBuf),
    /// The certificate and the key do not match, or are of an unsupported kind.
    #[error("{} and {} cannot be used together: {reason}", files.certificate.display(), files.key.display())]
    Unusable {
        /// The files.
        files: TlsFiles,
        /// The error.
        reason: rustls::Error,
    },
}

impl TlsFiles {
    /// Reads the files, for connections that speak `protocol`, an ALPN name.
    ///
    /// # Errors
    /// The files are missing or invalid.
    pub(crate) fn acceptor(&self, protocol: &[u8]) -> Result<TlsAcceptor, TlsError> {
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
