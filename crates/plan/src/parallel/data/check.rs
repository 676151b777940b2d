//! What data parallel ranks cannot do, and what of it is not planned.

use crate::options::{Offload, OptimizerKind, Options, Quantize, Recompute, refused};
use crate::parallel::{DataParallel, FsdpWrap, Mesh, Sharding, Stack, ZeroSizes};
use peakledger_input::Problem;

impl Options {
    /// Refuses what cannot be combined.
    pub(crate) fn check_data_parallel(&self, mesh: &Mesh) -> Result<(), Problem> {
        if self.stack != Stack::Transformers {
            return Ok(());
        }
        let sharding = self.parallel.sharding;
        let replicas = mesh.replicas();
        self.check_without_effect(replicas)?;
        self.check_beside_model_parallel(mesh)?;
        if sharding.is_fsdp() {
            self.check_fsdp(mesh)?;
        }
        if sharding.is_zero() {
            self.check_zero()?;
        }
        let replicated = sharding == Sharding::Replicated && replicas > 1;
        if replicated && self.offload.parameters {
            let cause = "DistributedDataParallel has all parameters on the card";
            return refused("--offload", cause, "shard them: `--fsdp full_shard` or `--zero 3`");
        }
        Ok(())
    }

    /// What shares out the parts that tensor or expert parallel leaves a rank.
    fn check_beside_model_parallel(&self, mesh: &Mesh) -> Result<(), Problem> {
        let sharding = self.parallel.sharding;
        if mesh.ep > 1 {
            self.check_beside_experts(mesh)?;
        }
        if mesh.tp > 1 && sharding == Sharding::Zero3 {
            let cause =
                "DeepSpeed splits matrices at stages 0 to 2 alone (`_configure_tensor_parallel_states`)";
            return refused("--zero", cause, "use --zero 2, or --fsdp full_shard");
        }
        if self.parallel.sp && sharding.is_zero() {
            let cause = "DeepSpeed does not split the sequence among tensor parallel ranks";
            return refused("--sp", cause, "leave it out, or use --fsdp full_shard");
        }
        Ok(())
    }

    /// What shares out a model whose experts are spread over ranks. transformers does it itself, by FSDP2: `Trainer` has no
    /// other wrap such a model (`is_distributed_loading_by_transformers`).
    fn check_beside_experts(&self, mesh: &Mesh) -> Result<(), Problem> {
        let (sharding, replicas) = (self.parallel.sharding, mesh.replicas());
        let is_deferred = self.gradient_accumulation_steps > 1 && !self.parallel.data.sync_each_batch;
        let with_adapters = self.lora.is_some() && replicas > 1;
        if self.parallel.data.wrap.is_some_and(|wrap| wrap != FsdpWrap::default()) {
            let cause = "where experts are spread transformers itself wraps the model (`apply_fully_sharded_data_parallelism`)";
            return refused("--fsdp-wrap", cause, "leave it out, or leave out --ep");
        }
        match sharding {
            _ if sharding.is_zero() => {
                let cause = "DeepSpeed spreads experts by layers of its own (AutoEP, `deepspeed/module_inject/auto_ep_layer.py`), which are not planned yet";
                refused("--zero", cause, "use --fsdp full_shard")
            }
            Sharding::Replicated if replicas > 1 && mesh.ep != mesh.tp => {
                let cause = "DistributedDataParallel sums every gradient over the same ranks, and of these each has other experts";
                refused("--ep", cause, "add --fsdp full_shard, or spread them over the ranks of --tp alone")
            }
            Sharding::ShardGradOp => {
                let cause = "transformers reshards experts after forward, whatever its plan says (`apply_fully_sharded_data_parallelism`)";
                refused("--fsdp", cause, "use full_shard")
            }
            _ if sharding.is_fsdp() && replicas == 1 => {
                let cause = "transformers shards over data parallel ranks, and there is one";
                refused("--fsdp", cause, "leave it out, or add --dp 2 or more")
            }
            Sharding::HybridShard if is_deferred => {
                let cause = "between replicas Trainer defers the sum alone (`_defer_fsdp_gradient_reduction`), which is not planned yet";
                refused(
                    "--gradient-accumulation-steps",
                    cause,
                    "add --sync-each-batch, or use --fsdp full_shard",
                )
            }
            _ if with_adapters => {
                let cause = "adapters stay whole beside experts that are spread (`_sync_replicated_trainable_parameters`), which is not planned yet";
                refused("--lora", cause, "leave out --ep")
            }
            _ => Ok(()),
        }
    }

    /// Options that say something to a strategy which does not run.
    fn check_without_effect(&self, replicas: u32) -> Result<(), Problem> {
        let sharding = self.parallel.sharding;
        let (given, default) = (&self.parallel.data, DataParallel::default());
        let (sizes, usual) = (given.zero, ZeroSizes::default());
        let is_ddp = sharding == Sharding::Replicated && replicas > 1;
        let (is_zero, is_zero3) = (sharding.is_zero(), sharding == Sharding::Zero3);
        let hybrid = sharding == Sharding::HybridShard;
        let shard_size = self.parallel.dp_shard_size.is_some();
        let wraps_otherwise = given.wrap.is_some_and(|wrap| wrap != FsdpWrap::default());
        let says: [(&str, bool, bool, &str); 11] = [
            ("--dp-shard-size", shard_size, hybrid, "--fsdp hybrid_shard"),
            ("--fsdp-wrap", wraps_otherwise, sharding.is_fsdp(), "--fsdp full_shard"),
            ("--reduce-dtype", given.reduce_dtype.is_some(), sharding.is_fsdp(), "--fsdp full_shard"),
            ("--sync-each-batch", given.sync_each_batch, sharding.is_fsdp() || is_ddp, "--fsdp full_shard"),
            ("--ddp-bucket-view", given.ddp_bucket_view != default.ddp_bucket_view, is_ddp, "--dp 2"),
            (
                "--zero-reduce-bucket-size",
                sizes.reduce_bucket_size != usual.reduce_bucket_size,
                is_zero,
                "--zero 2",
            ),
            ("--zero-overlap-comm", sizes.overlap_comm.is_some(), is_zero, "--zero 2"),
            (
                "--zero-prefetch-bucket-size",
                sizes.prefetch_bucket_size != usual.prefetch_bucket_size,
                is_zero3,
                "--zero 3",
            ),
            (
                "--zero-param-persistence-threshold",
                sizes.param_persistence_threshold != usual.param_persistence_threshold,
                is_zero3,
                "--zero 3",
            ),
            (
                "--zero-max-live-parameters",
                sizes.max_live_parameters != usual.max_live_parameters,
                is_zero3,
                "--zero 3",
            ),
            ("--zero-sub-group-size", sizes.sub_group_size != usual.sub_group_size, is_zero3, "--zero 3"),
        ];
        match says.into_iter().find(|(_, given, has_effect, _)| *given && !*has_effect) {
            None => Ok(()),
            Some((option, .., with)) => {
                let cause = "nothing of this step reads it";
                refused(option, cause, format!("leave it out, or add `{with}`"))
            }
        }
    }

    fn check_fsdp(&self, mesh: &Mesh) -> Result<(), Problem> {
        let replicas = mesh.replicas();
        let shards = mesh.shards(&self.parallel);
        if let Some(asked) = self.parallel.dp_shard_size.filter(|asked| *asked > replicas) {
            let cause = format!("there are {replicas} data parallel ranks, which are fewer than {asked}");
            return refused("--dp-shard-size", cause, "use a size that divides them");
        }
        if self.parallel.sharding == Sharding::HybridShard && !replicas.is_multiple_of(shards) {
            return match self.parallel.dp_shard_size {
                Some(_) => {
                    let cause = format!(
                        "{replicas} data parallel ranks are no multiple of the {shards} that share out"
                    );
                    refused("--dp-shard-size", cause, "use a size that divides them")
                }
                None => {
                    let cause =
                        format!("{replicas} data parallel ranks are no multiple of the {shards} of a node");
                    refused("--fsdp", cause, "use a --dp-shard-size that divides them")
                }
            };
        }
        let optimizer = match self.optimizer {
            OptimizerKind::AdamW | OptimizerKind::Sgd => None,
            OptimizerKind::AdamW8bit => Some("bitsandbytes' AdamW8bit does not step shards"),
            OptimizerKind::AdamW32bit => Some("bitsandbytes' AdamW32bit does not step shards"),
            OptimizerKind::Lion => Some("bitsandbytes' Lion does not step shards"),
            OptimizerKind::Adafactor => Some("Adafactor over shards is not planned yet"),
            OptimizerKind::Muon => Some("Muon over shards is not planned yet"),
        };
        if let Some(cause) = optimizer {
            return refused("--optimizer", cause, "use adamw or sgd with --fsdp");
        }
        if self.master_weights.is_some() || self.grad_dtype.is_some() {
            let cause = "FSDP2 steps its shards in the type that they are kept in";
            return refused(
                "--master-weights",
                cause,
                "leave it and --grad-dtype out: `--precision bf16-mixed` keeps shards in fp32",
            );
        }
        if matches!(self.recompute, Recompute::Every(layers) if layers.get() > 1) {
            let cause = "a checkpoint over several layers that are gathered one by one is not planned yet";
            return refused("--recompute", cause, "use full, or selective");
        }
        if self.quantize == Some(Quantize::Int8) {
            return refused("--quantize", "bitsandbytes' int8 weights cannot be sharded", "use nf4");
        }
        Ok(())
    }

    fn check_zero(&self) -> Result<(), Problem> {
        let is_zero3 = self.parallel.sharding == Sharding::Zero3;
        let Offload { optimizer, parameters, .. } = self.offload;
        if parameters && !is_zero3 {
            let cause = "DeepSpeed offloads parameters in stage 3 alone";
            return refused("--offload", cause, "use `--zero 3`, or `--offload optimizer`");
        }
        if self.parallel.data.zero.reduce_bucket_size == 0 {
            return refused("--zero-reduce-bucket-size", "a bucket of no numbers", "use 1 or more");
        }
        if self.master_weights.is_some() {
            let cause = "DeepSpeed has master weights by itself";
            return refused("--master-weights", cause, "leave it out");
        }
        if self.optimizer == OptimizerKind::Muon {
            let cause = "Muon over flat partitions is not planned yet";
            return refused("--optimizer", cause, "use another with --zero");
        }
        if optimizer && self.optimizer != OptimizerKind::AdamW {
            let cause = "DeepSpeed steps AdamW alone on the host (DeepSpeedCPUAdam)";
            return refused("--optimizer", cause, "use adamw, or leave out the offload");
        }
        if self.grad_dtype.is_some() && (self.parallel.sharding == Sharding::Zero1 || optimizer) {
            let cause = "gradients summed in another type are planned for stages 2 and 3 on the card alone";
            return refused("--grad-dtype", cause, "leave it out");
        }
        if self.quantize.is_some() {
            let cause = "quantized weights under ZeRO are not planned yet";
            return refused("--quantize", cause, "use --fsdp full_shard");
        }
        Ok(())
    }
}
