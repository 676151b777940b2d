//! Expert parallel as transformers runs it: which experts are this rank's, and what cannot be.

use crate::config::Architecture;
use crate::options::{Experts, Options, refused};
use crate::parallel::{Parallel, Stack};
use crate::torch::ops::Group;
use peakledger_input::Problem;

/// The expert parallel group of a rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertParallel {
    pub(crate) group: Group,
    /// The tensor parallel group, whose ranks share a batch.
    pub(crate) tensor: Option<Group>,
    /// The rows that this rank receives over those that it sends.
    imbalance: f64,
}

impl ExpertParallel {
    /// Nothing where there is one rank.
    ///
    /// # Errors
    /// Names what does not divide, with the equation (`DistributedConfig._validate_mesh_config`, `MoEParamShard`), and what
    /// transformers cannot do with experts that are spread.
    pub(crate) fn of(arch: &Architecture, options: &Options) -> Result<Option<ExpertParallel>, Problem> {
        let mesh = options.mesh()?;
        let place = mesh.place(options.parallel.rank);
        if mesh.ep <= 1 {
            return Ok(None);
        }
        let (experts, ranks) = (arch.shape.num_experts, u64::from(mesh.ep));
        if experts == 0 {
            return refused("--ep", "the model has no experts", "leave it out");
        }
        if mesh.etp > 1 {
            let cause = "with --ep transformers keeps experts whole (`TransformersDeviceMesh` has no axis for their parts)";
            return refused("--etp", cause, "leave it out, or use 1");
        }
        if experts % ranks != 0 {
            let cause =
                format!("{experts} experts / ep {ranks} = {} and {} over", experts / ranks, experts % ranks);
            return refused("--ep", cause, "use a size that divides the experts");
        }
        let is_sharded = options.parallel.sharding.is_fsdp();
        let (tp, dp) = (mesh.tp, if is_sharded { mesh.shards(&options.parallel) } else { mesh.dp });
        if mesh.ep % tp != 0 || (tp * dp) % mesh.ep != 0 {
            let cause =
                format!("ep {ranks} is no multiple of tp {tp} that divides tp {tp} × dp {dp} = {}", tp * dp);
            return refused(
                "--ep",
                cause,
                "use such a size: the experts are spread over whole tensor parallel groups",
            );
        }
        if is_sharded && arch.shape.tie_word_embeddings {
            let cause = "transformers ties the head to the embedding after it has sharded both (`_finalize_model_loading`), and what FSDP2 gathers then is not planned yet";
            return refused("--ep", cause, "leave it out for this model");
        }
        if mesh.pp > 1 {
            let cause = "transformers does not send tokens to experts within a pipeline";
            return refused("--ep", cause, "leave it out, or --pp");
        }
        if options.experts != Experts::GroupedMm {
            let cause = "experts that are spread are planned with grouped_mm";
            return refused("--experts", cause, "leave it out");
        }
        if !(options.rank_imbalance > 0.0 && options.rank_imbalance <= f64::from(mesh.ep)) {
            let cause = format!(
                "a rank of {ranks} cannot receive {} times the rows it sends",
                options.rank_imbalance
            );
            return refused(
                "--expert-imbalance",
                cause,
                "use more than 0 and at most the expert parallel size",
            );
        }
        let tensor = (tp > 1).then(|| Group::new(mesh.tensor_peers(), place.tp));
        let group = Group::new(mesh.expert_peers(), place.ep);
        Ok(Some(ExpertParallel { group, tensor, imbalance: options.rank_imbalance }))
    }

    /// Rows received, where so many are sent.
    #[allow(clippy::cast_possible_truncation, clippy::cast_precision_loss, clippy::cast_sign_loss)] // a share of what fits 53 bits
    pub(crate) fn received(self, sent: u64) -> u64 {
        if self.imbalance == 1.0 { sent } else { (sent as f64 * self.imbalance) as u64 }
    }
}

impl Options {
    /// Checks that experts are split as transformers splits them; with `--ep` they are whole, and that is checked with it.
    pub(crate) fn check_expert_tensor(&self, experts: u64) -> Result<(), Problem> {
        let Parallel { etp: Some(etp), ep: 0 | 1, tp, .. } = self.parallel else { return Ok(()) };
        let cause = match experts {
            _ if self.stack != Stack::Transformers => return Ok(()),
            0 => "the model has no experts".to_owned(),
            _ if etp == tp => return Ok(()),
            _ => format!("transformers splits the matrices of experts as all others are: over tp {tp} ranks"),
        };
        refused("--etp", cause, "leave it out")
    }
}
