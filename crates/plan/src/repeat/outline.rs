//! A model as it was loaded, layer by layer: what each layer has of the tape, and which layers are of one kind.

use crate::nn::Parameter;
use crate::torch::tape::{ModuleId, ModuleName, Role, StorageId, Stored, Tape};
use std::ops::Range;

/// The layers of a model or of a stage of it, all of which are loaded. They are counted over the whole model.
#[derive(Debug)]
pub(super) struct Outline {
    /// The first of them.
    pub(super) first: usize,
    layers: Vec<Loaded>,
    of_module: Vec<Option<usize>>,
    of_parameter: Vec<Option<usize>>,
    of_storage: Vec<Option<usize>>,
}

/// What a layer has of the tape, when the model is loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loaded {
    pub(super) modules: Range<usize>,
    pub(super) parameters: Range<usize>,
    pub(super) stored: Range<usize>,
}

impl Outline {
    /// The layers of a tape on which a model was just loaded; nothing where they do not lie there one after the other.
    pub(super) fn of(tape: &Tape) -> Option<Outline> {
        let mut of_module: Vec<Option<usize>> = Vec::with_capacity(tape.modules.len());
        for module in &tape.modules {
            let outer = module.parent.and_then(|parent| of_module.get(parent.0 as usize).copied().flatten());
            of_module.push(match module.name {
                ModuleName::Index(index) => outer.or(Some(index as usize)),
                ModuleName::Word(_) => outer,
            });
        }
        let layer = |module: ModuleId| of_module.get(module.0 as usize).copied().flatten();
        let of_parameter: Vec<_> = tape.parameters.iter().map(|parameter| layer(parameter.module)).collect();
        let of_storage: Vec<_> = tape.stored.iter().map(|stored| layer(stored.module)).collect();
        let first = of_module.iter().flatten().next().copied()?;
        let [modules, parameters, stored] =
            [&of_module, &of_parameter, &of_storage].map(|of| ranges(of, first));
        let (modules, parameters, stored) = (modules?, parameters?, stored?);
        if modules.len() != parameters.len() || modules.len() != stored.len() {
            return None;
        }
        let layers = modules.into_iter().zip(parameters).zip(stored);
        let layers = layers.map(|((modules, parameters), stored)| Loaded { modules, parameters, stored });
        Some(Outline { first, layers: layers.collect(), of_module, of_parameter, of_storage })
    }

    pub(super) fn layer(&self, layer: usize) -> Option<&Loaded> {
        self.layers.get(layer.checked_sub(self.first)?)
    }

    /// The layer after the last.
    pub(super) fn end(&self) -> usize {
        self.first + self.layers.len()
    }

    pub(super) fn of_module(&self, module: ModuleId) -> Option<usize> {
        self.of_module.get(module.0 as usize).copied().flatten()
    }

    pub(super) fn of_parameter(&self, parameter: u32) -> Option<usize> {
        self.of_parameter.get(parameter as usize).copied().flatten()
    }

    /// The layer of a storage that was there when the model was loaded; nothing where it was not.
    pub(super) fn of_loaded(&self, storage: StorageId) -> Option<Option<usize>> {
        self.of_storage.get(storage.0 as usize).copied()
    }

    /// For each layer, from the first on, the first that is like it: of the same modules with the same parameters, trained or
    /// not, and run in the same way.
    pub(super) fn kinds<W: PartialEq>(
        &self,
        tape: &Tape,
        parameters: &[Parameter],
        way: impl Fn(usize) -> W,
    ) -> Vec<usize> {
        let mut firsts: Vec<usize> = Vec::new();
        let mut by_id: Vec<Option<&Parameter>> = vec![None; tape.parameters.len()];
        for parameter in parameters {
            if let Some(slot) = by_id.get_mut(parameter.id as usize) {
                *slot = Some(parameter);
            }
        }
        let kind = |(layer, loaded): (usize, &Loaded)| {
            let alike = |first: &&usize| {
                let other = self.layers.get(**first);
                way(self.first + **first) == way(self.first + layer)
                    && other.is_some_and(|other| Pair { tape, by_id: &by_id, of: [other, loaded] }.is_alike())
            };
            if let Some(first) = firsts.iter().find(alike) {
                return *first;
            }
            firsts.push(layer);
            layer
        };
        self.layers.iter().enumerate().map(kind).collect()
    }
}

/// Where each layer lies from the first on, if all lie one right after the other.
fn ranges(layers: &[Option<usize>], first: usize) -> Option<Vec<Range<usize>>> {
    let mut ranges: Vec<Range<usize>> = Vec::new();
    for (at, layer) in layers.iter().enumerate() {
        let Some(layer) = *layer else { continue };
        let layer = layer.checked_sub(first)?;
        let seen = ranges.len();
        match ranges.last_mut() {
            Some(last) if last.end != at => return None,
            Some(last) if layer + 1 == seen => last.end = at + 1,
            _ if layer == seen => ranges.push(at..at + 1),
            _ => return None,
        }
    }
    Some(ranges)
}

/// Two layers, compared.
struct Pair<'a> {
    tape: &'a Tape,
    by_id: &'a [Option<&'a Parameter>],
    of: [&'a Loaded; 2],
}

impl Pair<'_> {
    fn is_alike(&self) -> bool {
        self.modules() && self.parameters() && self.storages()
    }

    fn slices<'t, T>(&self, column: &'t [T], range: impl Fn(&Loaded) -> Range<usize>) -> [&'t [T]; 2] {
        self.of.map(|loaded| column.get(range(loaded)).unwrap_or_default())
    }

    /// Where a module stands in its layer; one outside as it is.
    fn place(&self, which: usize, module: ModuleId) -> (bool, usize) {
        let (at, layer) = (module.0 as usize, self.of.get(which));
        let inside = layer.filter(|layer| layer.modules.contains(&at));
        inside.map_or((false, at), |layer| (true, at - layer.modules.start))
    }

    fn modules(&self) -> bool {
        let [a, b] = self.slices(&self.tape.modules, |loaded| loaded.modules.clone());
        let parent = |which, parent: Option<ModuleId>| parent.map(|parent| self.place(which, parent));
        let is_same = |a: &ModuleName, b: &ModuleName| match (a, b) {
            (ModuleName::Word(a), ModuleName::Word(b)) => is_same(a, b),
            _ => a == b,
        };
        let same = |a: &ModuleName, b: &ModuleName, first| first || is_same(a, b); // the first has the layer's number
        a.len() == b.len()
            && a.iter().zip(b).enumerate().all(|(at, (a, b))| {
                same(&a.name, &b.name, at == 0) && parent(0, a.parent) == parent(1, b.parent)
            })
    }

    fn parameters(&self) -> bool {
        let [a, b] = self.slices(&self.tape.parameters, |loaded| loaded.parameters.clone());
        let [x, y] = self.slices(self.by_id, |loaded| loaded.parameters.clone());
        let as_trained = |parameter: &Option<&Parameter>| {
            parameter.map(|p| (p.tensor.dtype(), p.leaf.as_ref().map(|leaf| leaf.is_buffered)))
        };
        let are_same_size = |x: &Option<&Parameter>, y: &Option<&Parameter>| {
            x.map(|p| p.tensor.layout()) == y.map(|p| p.tensor.layout())
        };
        a.len() == b.len()
            && a.iter()
                .zip(b)
                .all(|(a, b)| is_same(a.name, b.name) && self.place(0, a.module) == self.place(1, b.module))
            && x.iter().zip(y).all(|(x, y)| as_trained(x) == as_trained(y) && are_same_size(x, y))
    }

    fn storages(&self) -> bool {
        let [a, b] = self.slices(&self.tape.stored, |loaded| loaded.stored.clone());
        let what = |which: usize, stored: &Stored| {
            let first = self.of.get(which).map_or(0, |loaded| loaded.parameters.start);
            let (role, state) = match stored.role {
                Role::Of { parameter, state } => (Some((parameter as usize).checked_sub(first)), state),
                _ => (None, ""),
            };
            let Stored { bytes, device, category, detail, dtype, .. } = *stored;
            ((self.place(which, stored.module), role, (bytes, device, category, detail, dtype)), state)
        };
        a.len() == b.len()
            && a.iter().zip(b).all(|(a, b)| {
                let ((a, a_state), (b, b_state)) = (what(0, a), what(1, b));
                a == b && is_same(a_state, b_state)
            })
    }
}

/// Whether two words of the program are the same: mostly they are one and the same text, which need not be read.
fn is_same(a: &'static str, b: &'static str) -> bool {
    std::ptr::eq(a, b) || a == b
}
