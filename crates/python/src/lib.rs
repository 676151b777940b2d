//! The extension module under the Python package `peakledger`: names and documentation are in Python
//! (`python/peakledger`), conversion and errors are here.

use pyo3::prelude::*;

/// The module, which Python imports as `peakledger._native`.
#[pymodule]
#[pyo3(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))
}
