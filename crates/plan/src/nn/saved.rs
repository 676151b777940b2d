//! `modules_to_save` of peft: a copy of a module is trained and runs in its place, and the module itself stays beside it, frozen
//! (`ModulesToSaveWrapper` in `peft/utils/other.py`). The copy has the type of the weights: peft makes fp32 of adapters alone
//! (`cast_adapter_dtype` in `peft/tuners/tuners_utils.py`).

use super::Builder;
use crate::options::refused;
use crate::torch::{ModuleId, Tensor};
use peakledger_input::{Problem, near, quoted};

impl Builder {
    /// The copy of a module with that weight alone, and its own module, where one is trained.
    pub(crate) fn saved(
        &mut self,
        module: ModuleId,
        name: &'static str,
        sizes: [u64; 2],
    ) -> Option<(ModuleId, Tensor)> {
        self.saved_names.insert(name);
        let lora = self.lora.as_ref()?;
        if !lora.save.iter().any(|saved| saved == name) {
            return None;
        }
        let dtype = lora.save_dtype.unwrap_or(self.dtype);
        let copies = self.module(module, "modules_to_save");
        let copy = self.module(copies, "default");
        let weight = self.trained_part((copy, "weight"), &sizes, dtype, sizes[0].saturating_mul(sizes[1]));
        Some((copy, weight))
    }

    /// Refuses a module that the model does not have, or not as one of which a copy is planned.
    pub(super) fn check_saved(&self) -> Result<(), Problem> {
        let saved = self.lora.iter().flat_map(|lora| &lora.save);
        let Some(unknown) = saved.into_iter().find(|name| !self.saved_names.contains(name.as_str())) else {
            return Ok(());
        };
        let names: Vec<&str> = self.saved_names.iter().copied().collect();
        let cause = format!("a copy of {} that is trained is not planned", quoted(unknown));
        let mend = match near(unknown, names.iter().copied()) {
            Some(near) => format!("did you mean `{near}`? Of this model are {}", names.join(", ")),
            None => format!("of this model are {}", names.join(", ")),
        };
        refused("--lora", cause, mend)
    }
}
