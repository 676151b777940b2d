//! The extension module under the Python package `peakledger`: names and documentation are in Python
//! (`python/peakledger`), conversion and errors are here.
//!
//! `seed` has the seed's functions on plain dicts, `ledger` ledgers, and `ask` whatever else the command line
//! answers. Work that may be long is done `away` from the interpreter.

mod ask;
mod away;
mod error;
mod ledger;
mod seed;
mod sum;

use pyo3::prelude::*;

/// The module, which Python imports as `peakledger._native`.
#[pymodule]
#[pyo3(name = "_native")]
fn native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add("PHASES", seed::phases(module.py())?)?;
    module.add("VALID_CATEGORIES", seed::categories(module.py())?)?;
    module.add_function(wrap_pyfunction!(seed::validate_state_lifecycle, module)?)?;
    module.add_function(wrap_pyfunction!(seed::summarize_phase_memory, module)?)?;
    module.add_function(wrap_pyfunction!(seed::find_peak_overlap, module)?)?;
    module.add_function(wrap_pyfunction!(seed::compare_peak_candidates, module)?)?;
    module.add_function(wrap_pyfunction!(ask::ask, module)?)?;
    module.add_function(wrap_pyfunction!(ask::run, module)?)?;
    module.add_class::<ledger::Ledger>()
}
