//! Work away from the interpreter: other Python threads run meanwhile, and Ctrl-C is heeded.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

/// How long Ctrl-C may wait.
const PATIENCE: Duration = Duration::from_millis(50);

/// As much as the main thread of a program has.
const STACK: usize = 8 << 20;

/// Does the work on a thread of its own and waits for it without the GIL. After Ctrl-C nobody waits for it any more: its
/// result is dropped when it comes.
pub(crate) fn away<T, F>(py: Python<'_>, work: F) -> PyResult<T>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let (done, mut result) = sync_channel(1);
    let worker = thread::Builder::new().name("peakledger".to_owned()).stack_size(STACK);
    worker.spawn(move || {
        let _nobody_waits = done.send(work());
    })?;
    loop {
        let received;
        (received, result) = py.detach(move || (result.recv_timeout(PATIENCE), result));
        match received {
            Ok(value) => return Ok(value),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("a bug of peakledger: standard error says where"));
            }
        }
    }
}
