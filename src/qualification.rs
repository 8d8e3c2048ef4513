//! Certificates of PJRT plugins: which ops a plugin computes correctly, on which element types.
//!
//! The command `fuseline qualify` (crate `fuseline-qualify`) runs the op table on a plugin,
//! compares the results with the interpreter and writes a [`Certificate`].

#[doc(inline)]
pub use fuseline_runtime::certificate::{
    Brought, Certificate, CertificateError, CertificateKey, Check, FORMAT, Finding, Level, Row, SAMPLES,
    digest,
};
