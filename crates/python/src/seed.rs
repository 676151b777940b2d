//! The seed's functions: plain dicts in and out, the caller's floats kept, the exceptions of Python.
//!
//! Each rule is checked in the order in which the seed checks it. What is usual (a dict with words and floats in it) takes
//! the short way through the C API; anything else that Python takes for the same is asked what it is, as Python would.

use crate::sum::Sum;
use peakledger_core::{Category, Timeline};
use pyo3::exceptions::{PyKeyError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PySet, PyString};

/// How many states are read between two looks at whether Ctrl-C was pressed.
const PATIENCE: usize = 1 << 16;

/// The list `PHASES`.
pub(crate) fn phases(py: Python<'_>) -> PyResult<&Bound<'_, PyList>> {
    static PHASES: PyOnceLock<Py<PyList>> = PyOnceLock::new();
    let made = PHASES.get_or_try_init(py, || {
        let timeline = Timeline::standard();
        let names = timeline.slots().iter().map(|slot| PyString::intern(py, slot.phase.as_str()));
        PyList::new(py, names).map(Bound::unbind)
    })?;
    Ok(made.bind(py))
}

/// The set `VALID_CATEGORIES`.
pub(crate) fn categories(py: Python<'_>) -> PyResult<&Bound<'_, PySet>> {
    static CATEGORIES: PyOnceLock<Py<PySet>> = PyOnceLock::new();
    let made = CATEGORIES.get_or_try_init(py, || {
        let names = Category::ALL.map(|category| PyString::intern(py, category.as_str()));
        PySet::new(py, names).map(Bound::unbind)
    })?;
    Ok(made.bind(py))
}

#[pyfunction]
pub(crate) fn validate_state_lifecycle(state: &Bound<'_, PyAny>) -> PyResult<()> {
    Words::of(state.py())?.read(fields(state)?).map(drop)
}

#[pyfunction]
pub(crate) fn summarize_phase_memory<'py>(states: &Bound<'py, PyAny>) -> PyResult<Vec<Bound<'py, PyDict>>> {
    let py = states.py();
    let words = Words::of(py)?;
    let stays = words.read_all(states)?;
    let mut active: Vec<Vec<&Stay<'py>>> = words.phases.iter().map(|_| Vec::new()).collect();
    for stay in stays.iter().filter(|stay| stay.on_gpu) {
        for there in active.get_mut(stay.start..=stay.end).unwrap_or_default() {
            there.push(stay);
        }
    }
    let record = |(phase, active): (&Word<'py>, &Vec<&Stay<'py>>)| {
        let sizes = PyDict::new(py);
        for stay in active {
            sizes.set_item(&stay.name, &stay.size)?;
        }
        let record = PyDict::new(py);
        record.set_item(intern!(py, "phase"), &phase.object)?;
        record.set_item(intern!(py, "total_mb"), words.total(py, active.iter().map(|stay| stay.mb))?)?;
        record
            .set_item(intern!(py, "active_states"), PyList::new(py, active.iter().map(|stay| &stay.name))?)?;
        record.set_item(intern!(py, "state_sizes_mb"), sizes)?;
        py.check_signals()?;
        Ok(record)
    };
    words.phases.iter().zip(&active).map(record).collect()
}

#[pyfunction]
pub(crate) fn find_peak_overlap<'py>(phase_records: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyDict>> {
    let py = phase_records.py();
    if !phase_records.is_truthy()? {
        return Err(PyValueError::new_err(
            "there are no phase records: pass those of summarize_phase_memory",
        ));
    }
    let mut peak: Option<(Bound<'py, PyAny>, Bound<'py, PyFloat>)> = None;
    for record in phase_records.try_iter()? {
        let record = record?;
        let total = float(&record.get_item(intern!(py, "total_mb"))?)?;
        if peak.as_ref().is_none_or(|(_, largest)| total.value() > largest.value()) {
            peak = Some((record, total)); // ties stay with the earliest
        }
    }
    let Some((record, total)) = peak else {
        return Err(PyValueError::new_err("there are no phase records"));
    };
    let sizes = record.call_method1(intern!(py, "get"), (intern!(py, "state_sizes_mb"), PyDict::new(py)))?;
    let answer = PyDict::new(py);
    answer.set_item(intern!(py, "peak_phase"), record.get_item(intern!(py, "phase"))?)?;
    answer.set_item(intern!(py, "peak_mb"), total)?;
    answer.set_item(intern!(py, "contributors"), by_size(&sizes)?)?;
    Ok(answer)
}

#[pyfunction]
pub(crate) fn compare_peak_candidates<'py>(
    baseline_states: &Bound<'py, PyAny>,
    candidate_states: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyDict>> {
    let py = baseline_states.py();
    if !candidate_states.is_truthy()? {
        return Err(PyValueError::new_err(
            "there are no candidates: pass a dict of at least one name and its states",
        ));
    }
    let peak_of = |states: &Bound<'py, PyAny>| {
        let records = PyList::new(py, summarize_phase_memory(states)?)?;
        find_peak_overlap(&records)
    };
    let (phase, mb) = (intern!(py, "peak_phase"), intern!(py, "peak_mb"));
    let baseline = peak_of(baseline_states)?;
    let comparisons = PyDict::new(py);
    for pair in candidate_states.call_method0(intern!(py, "items"))?.try_iter()? {
        let (name, states): (Bound<'py, PyAny>, Bound<'py, PyAny>) = pair?.extract()?;
        if !name.is_truthy()? {
            return Err(PyValueError::new_err("a candidate has an empty name: give it one"));
        }
        let peak = peak_of(&states)?;
        let comparison = PyDict::new(py);
        comparison.set_item(phase, peak.as_any().get_item(phase)?)?;
        comparison.set_item(mb, peak.as_any().get_item(mb)?)?;
        let saving = baseline.as_any().get_item(mb)?.sub(peak.as_any().get_item(mb)?)?;
        comparison.set_item(intern!(py, "memory_saving_mb"), saving)?;
        comparisons.set_item(name, comparison)?;
    }
    let answer = PyDict::new(py);
    answer.set_item(intern!(py, "baseline"), baseline)?;
    answer.set_item(intern!(py, "candidates"), comparisons)?;
    Ok(answer)
}

/// Names, those of the largest sizes first, then by name.
fn by_size<'py>(sizes: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
    let py = sizes.py();
    let mut named: Vec<(f64, Bound<'py, PyAny>)> = Vec::new();
    for name in sizes.try_iter()? {
        let name = name?;
        named.push((-float(&sizes.get_item(&name)?)?.value(), name));
    }
    let usual = named.iter().map(|(size, name)| match name.cast_exact::<PyString>() {
        Ok(text) if !size.is_nan() => text.to_str().ok(),
        _ => None,
    });
    if let Some(texts) = usual.collect::<Option<Vec<&str>>>() {
        let mut order: Vec<(f64, &str, &Bound<'py, PyAny>)> =
            named.iter().zip(texts).map(|((size, name), text)| (*size, text, name)).collect();
        // UTF-8 sorts as Python's code points do
        order.sort_by(|a, b| {
            a.0.partial_cmp(&b.0).unwrap_or(std::cmp::Ordering::Equal).then_with(|| a.1.cmp(b.1))
        });
        return PyList::new(py, order.into_iter().map(|(_, _, name)| name));
    }
    let pairs = PyList::new(py, named)?; // what does not compare is Python's to say
    pairs.sort()?;
    let names = pairs.iter().map(|pair| pair.get_item(1)).collect::<PyResult<Vec<_>>>()?;
    PyList::new(py, names)
}

/// `float(value)`.
fn float<'py>(value: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyFloat>> {
    if let Ok(float) = value.cast_exact::<PyFloat>() {
        return Ok(float.clone());
    }
    let float = value.py().get_type::<PyFloat>().call1((value,))?;
    Ok(float.cast_into()?)
}

/// A word of `PHASES`.
struct Word<'py> {
    object: Bound<'py, PyAny>,
    /// Nothing where somebody put another thing into the list.
    text: Option<String>,
}

/// The words that states may use, and how Python adds. `PHASES` and `VALID_CATEGORIES` are looked at in each call, as the
/// seed does.
struct Words<'py> {
    phases: Vec<Word<'py>>,
    categories: &'py Bound<'py, PySet>,
    compensated: bool,
}

/// A state that keeps the rules.
struct Stay<'py> {
    name: Bound<'py, PyString>,
    size: Bound<'py, PyFloat>,
    mb: f64,
    on_gpu: bool,
    start: usize,
    end: usize,
}

impl<'py> Words<'py> {
    fn of(py: Python<'py>) -> PyResult<Words<'py>> {
        let word = |object: Bound<'py, PyAny>| {
            let text =
                object.cast_exact::<PyString>().ok().and_then(|text| text.to_str().ok()).map(str::to_owned);
            Word { object, text }
        };
        Ok(Words {
            phases: phases(py)?.iter().map(word).collect(),
            categories: categories(py)?,
            compensated: py.version_info() >= (3, 12),
        })
    }

    fn read_all(&self, states: &Bound<'py, PyAny>) -> PyResult<Vec<Stay<'py>>> {
        let mut stays = Vec::with_capacity(states.len().unwrap_or(0));
        let mut layout = None;
        for (at, state) in states.try_iter()?.enumerate() {
            let state = state?;
            let dict = state.cast_exact::<PyDict>().ok();
            let layout = layout.get_or_insert_with(|| dict.map(Layout::of).unwrap_or_default());
            let fields = match dict.and_then(|dict| layout.fields(dict)) {
                Some(fields) => fields,
                None => fields(&state)?,
            };
            stays.push(self.read(fields)?);
            if at % PATIENCE == PATIENCE - 1 {
                states.py().check_signals()?;
            }
        }
        Ok(stays)
    }

    /// Checks the fields of a state against the rules, in the seed's order.
    fn read(&self, fields: Fields<'py>) -> PyResult<Stay<'py>> {
        let [category, device, end, name, persistent, size, start] = fields;
        let size = size_of(&size)?;
        let mb = size.value();
        if mb < 0.0 {
            return Err(PyValueError::new_err(format!("size_mb is negative ({mb:?}): sizes are 0 or more")));
        }
        if !self.categories.as_any().contains(&category)? {
            return Err(PyValueError::new_err(format!(
                "the category {} is not known: it is one of VALID_CATEGORIES",
                category.repr()?
            )));
        }
        let on_gpu = is_gpu(&device)?;
        let (start, end) = match (self.phase(&start)?, self.phase(&end)?) {
            (Some(start), Some(end)) => (start, end),
            (start_index, _) => {
                let (key, word) =
                    if start_index.is_none() { ("start_phase", start) } else { ("end_phase", end) };
                return Err(PyValueError::new_err(format!(
                    "{key} {} is not known: it is one of PHASES",
                    word.repr()?
                )));
            }
        };
        if start > end {
            return Err(PyValueError::new_err(
                "start_phase is later than end_phase: both count, in the order of PHASES",
            ));
        }
        if !persistent.is_instance_of::<PyBool>() {
            return Err(PyTypeError::new_err("persistent is True or False"));
        }
        let name = match name.cast_into_exact::<PyString>() {
            Ok(name) => name,
            Err(other) => other.into_inner().str()?,
        };
        Ok(Stay { name, size, mb, on_gpu, start, end })
    }

    /// Where a word stands in `PHASES`.
    fn phase(&self, word: &Bound<'py, PyAny>) -> PyResult<Option<usize>> {
        if let Some(at) = self.phases.iter().position(|phase| phase.object.is(word)) {
            return Ok(Some(at));
        }
        if let Ok(text) = word.cast_exact::<PyString>()
            && let Ok(text) = text.to_str()
            && let Some(at) = self.phases.iter().position(|phase| phase.text.as_deref() == Some(text))
        {
            return Ok(Some(at));
        }
        for (at, phase) in self.phases.iter().enumerate() {
            if phase.object.eq(word)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// What `sum` makes of the sizes: the integer 0 of none.
    fn total(&self, py: Python<'py>, sizes: impl Iterator<Item = f64>) -> PyResult<Bound<'py, PyAny>> {
        let mut sum = Sum::new(self.compensated);
        sizes.for_each(|size| sum.add(size));
        match sum.get() {
            Some(total) => Ok(PyFloat::new(py, total).into_any()),
            None => Ok(PyInt::new(py, 0).into_any()),
        }
    }
}

/// The fields of a state, by name.
type Fields<'py> = [Bound<'py, PyAny>; 7];

/// Their names, in that order.
fn keys(py: Python<'_>) -> [&Bound<'_, PyString>; 7] {
    [
        intern!(py, "category"),
        intern!(py, "device"),
        intern!(py, "end_phase"),
        intern!(py, "name"),
        intern!(py, "persistent"),
        intern!(py, "size_mb"),
        intern!(py, "start_phase"),
    ]
}

fn fields<'py>(state: &Bound<'py, PyAny>) -> PyResult<Fields<'py>> {
    let py = state.py();
    let keys = keys(py);
    if let Ok(dict) = state.cast_exact::<PyDict>() {
        let [a, b, c, d, e, f, g] = keys.map(|key| dict.get_item(key));
        if let (Some(a), Some(b), Some(c), Some(d), Some(e), Some(f), Some(g)) = (a?, b?, c?, d?, e?, f?, g?)
        {
            return Ok([a, b, c, d, e, f, g]);
        }
    }
    let there = py.get_type::<PySet>().call1((state,))?.cast_into::<PySet>()?;
    let mut missing = Vec::new();
    for key in keys {
        if !there.contains(key)? {
            missing.push(key.to_str()?);
        }
    }
    if !missing.is_empty() {
        return Err(PyKeyError::new_err(format!("the state lacks {}", missing.join(", "))));
    }
    let [a, b, c, d, e, f, g] = keys.map(|key| state.get_item(key));
    Ok([a?, b?, c?, d?, e?, f?, g?])
}

/// Where the keys of a dict stand. States that one program made have the same keys in the same order, so walking along them
/// finds the fields without looking any of them up.
#[derive(Default)]
struct Layout<'py> {
    /// The keys in the dict's order, and the field that each one is.
    keys: Vec<(Bound<'py, PyAny>, Option<usize>)>,
}

impl<'py> Layout<'py> {
    fn of(dict: &Bound<'py, PyDict>) -> Layout<'py> {
        let names = keys(dict.py());
        let field = |key: &Bound<'py, PyAny>| names.iter().position(|name| key.eq(name).unwrap_or(false));
        Layout { keys: dict.keys().iter().map(|key| (key.clone(), field(&key))).collect() }
    }

    /// The fields of a dict that is laid out so; nothing of another.
    fn fields(&self, dict: &Bound<'py, PyDict>) -> Option<Fields<'py>> {
        let mut found: [Option<Bound<'py, PyAny>>; 7] = Default::default();
        let mut entries = dict.iter();
        for (wanted, field) in &self.keys {
            let (key, value) = entries.next().filter(|(key, _)| key.is(wanted))?;
            drop(key);
            if let Some(found) = field.and_then(|field| found.get_mut(field)) {
                *found = Some(value);
            }
        }
        match found {
            [Some(a), Some(b), Some(c), Some(d), Some(e), Some(f), Some(g)] => Some([a, b, c, d, e, f, g]),
            _ => None,
        }
    }
}

/// A size as a float: the very object where it is one.
fn size_of<'py>(size: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyFloat>> {
    let is_number = || size.is_instance_of::<PyFloat>() || size.is_instance_of::<PyInt>();
    if size.is_instance_of::<PyBool>() || !is_number() {
        return Err(PyTypeError::new_err(
            "size_mb is no number: it is an int or a float, in units of 2^20 bytes",
        ));
    }
    float(size)
}

/// Whether a device is the GPU.
fn is_gpu(device: &Bound<'_, PyAny>) -> PyResult<bool> {
    let py = device.py();
    let (gpu, cpu) = (intern!(py, "gpu"), intern!(py, "cpu"));
    if device.is(gpu) || device.is(cpu) {
        return Ok(device.is(gpu));
    }
    if let Ok(text) = device.cast_exact::<PyString>()
        && let Ok(text @ ("gpu" | "cpu")) = text.to_str()
    {
        return Ok(text == "gpu");
    }
    for (word, on_gpu) in [(gpu, true), (cpu, false)] {
        if device.eq(word)? {
            return Ok(on_gpu);
        }
    }
    PySet::new(py, ["cpu", "gpu"])?.as_any().contains(device)?; // what no set can hold is a TypeError
    Err(PyValueError::new_err(format!("the device {} is not known: it is cpu or gpu", device.repr()?)))
}
