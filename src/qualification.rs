//! Certificates of PJRT plugins: which ops a plugin computes correctly, on which element types.
//!
//! The command `fuseline qualify` (crate `fuseline-qualify`) runs the op table on a plugin,
//! compares the results with the interpreter and writes a [`Certificate`].

#[doc(inline)]
pub use fuseline_runtime::certificate::{
    Certificate, CertificateError, CertificateKey, Check, FORMAT, Finding, Level, OperandKind, Row, SAMPLES,
    WorkaroundNeed, digest,
};
pub use fuseline_runtime::{QualificationPolicy, QualificationStatus};

use crate::{Engine, Result};

impl Engine {
    /// Keeps a certificate in the disk cache, where later engines in the same environment find it.
    ///
    /// # Errors
    /// When there is no disk cache, or the certificate is for another environment.
    pub fn keep_certificate(&self, certificate: &Certificate) -> Result<()> {
        self.shared().keep_certificate(certificate)
    }
}
