//! TODO

use crate::call::Row;

/// The rows of this file.
pub(crate) static ROWS: &[Row] = &[];
