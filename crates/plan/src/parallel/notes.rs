//! What a plan of many GPUs takes for granted, in words.

use super::{Schedule, Stack, stage};
use crate::plan::Plan;
use peakledger_core::Bytes;

/// So many GPUs on nodes of so many, in words: `2 of 8 GPUs`, or where they do not come out even `3 of 5 GPUs and one of 1`.
fn nodes(gpus: u32, of_node: u32) -> String {
    let of_node = of_node.max(1);
    let whole = |nodes: u32| format!("{nodes} of {of_node} GPU{}", if of_node == 1 { "" } else { "s" });
    match (gpus / of_node, gpus % of_node) {
        (nodes, 0) => whole(nodes),
        (0, left) => format!("one of {left}"),
        (nodes, left) => format!("{} and one of {left}", whole(nodes)),
    }
}

impl Plan {
    /// The assumptions that have to do with many GPUs, by topic; none for one.
    pub(crate) fn parallel_assumptions(&self) -> Vec<(&'static str, String)> {
        if self.mesh.world == 1 {
            return Vec::new();
        }
        let mut list = vec![("world", self.world())];
        if self.mesh.pp > 1 {
            list.push(("pipeline", self.pipeline()));
        }
        list.extend(self.groups().map(|groups| ("groups", groups)));
        if self.mesh.world > self.mesh.gpus_per_node {
            list.push(("nodes", self.nodes()));
        }
        list
    }

    fn world(&self) -> String {
        let mesh = &self.mesh;
        let sizes = [("tp", mesh.tp), ("cp", mesh.cp), ("dp", mesh.dp), ("pp", mesh.pp)];
        let sizes: Vec<String> = sizes.map(|(name, size)| format!("{name} {size}")).into();
        let experts = match (mesh.ep, mesh.etp) {
            (1, etp) if etp == mesh.tp => String::new(),
            (ep, etp) => format!("; experts etp {etp} × ep {ep} × edp {} × pp {}", mesh.edp, mesh.pp),
        };
        let shards = match self.options.parallel.sharding {
            sharding if sharding.is_zero() && self.options.stack == Stack::Megatron => {
                "; ranks that share out the optimizer are taken to be like their first (`--rank R` plans R itself)"
            }
            _ => "",
        };
        format!(
            "{} GPUs = {}{experts}; ranks in the order tp-cp-ep-dp-pp{shards}",
            mesh.world,
            sizes.join(" × ")
        )
    }

    fn nodes(&self) -> String {
        format!(
            "{} (`--gpus-per-node`), in the order of ranks; a group of k ranks on each of several nodes sends 1/k of its bytes \
             between them, as NCCL's rings do",
            nodes(self.mesh.world, self.mesh.gpus_per_node)
        )
    }

    fn pipeline(&self) -> String {
        let parallel = &self.options.parallel;
        let layers = self.architecture.shape.num_hidden_layers;
        let stage = self.mesh.place(parallel.rank).pp;
        let parts = stage::parts(parallel, layers, stage).unwrap_or_default();
        let held: Vec<String> = parts.iter().map(|part| format!("{}–{}", part.first, part.end - 1)).collect();
        let mut around = Vec::new();
        if parts.iter().any(|part| part.embeds) {
            around.push("the embedding");
        }
        if parts.iter().any(|part| part.ends) {
            around.push("the last norm and the head");
        }
        let around = match around.is_empty() {
            true => String::new(),
            false => format!(", {}", around.join(", ")),
        };
        let order = match parallel.schedule {
            Schedule::OneFOneB => "1f1b: one forward, one backward after a warm-up",
            Schedule::Gpipe => "gpipe: all forward passes, then all backward passes",
            Schedule::Interleaved => "interleaved: 1f1b over the parts of a stage in turn",
            Schedule::ZbH1 => {
                "zb-h1: the gradients of linear weights wait, up to what 1f1b holds on the first stage"
            }
            Schedule::ZbH2 => "zb-h2: the same with twice the warm-up",
            Schedule::DualPipe => {
                "dualpipe: micro-batches go both ways, two copies of the parameters; where a forward and a backward pass overlap, \
                 the forward is counted first"
            }
        };
        let tied = match self.architecture.shape.tie_word_embeddings {
            true => "; the tied embedding is on the first and on the last stage, a copy each",
            false => "",
        };
        let by = match self.options.stack {
            Stack::Transformers => {
                "torch.distributed.pipelining does; autocast is entered for each forward pass"
            }
            Stack::Megatron => {
                "Megatron-LM's schedules do (--deallocate-pipeline-outputs; with virtual stages --overlap-p2p-communication)"
            }
        };
        let sent_in = match self.options.gathered() {
            Some(_) => "type that weights are gathered in",
            None => "type of the weights",
        };
        format!(
            "{order}; stage {stage} of {} holds layers {}{around}; hidden states are sent in the {sent_in}, and receive \
             buffers are made and let go of as {by}{tied}",
            self.mesh.pp,
            held.join(" and "),
        )
    }

    fn groups(&self) -> Option<String> {
        let groups = self.communicators();
        if groups.is_empty() {
            return None;
        }
        let said: Vec<String> = groups
            .iter()
            .map(|group| format!("{} of {} ranks ({})", group.name, group.ranks, group.bytes))
            .collect();
        let source = match self.options.parallel.nccl_bytes_per_group {
            Some(bytes) => format!("{} each, as given", Bytes::new(bytes)),
            None => "as measured on A100s with NVLink (NVIDIA/nccl#964)".to_owned(),
        };
        Some(format!("NCCL communicators outside the allocator, {source}: {}", said.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::nodes;

    #[test]
    fn nodes_that_do_not_come_out_even_are_said() {
        let said = [(16, 8), (16, 5), (3, 1), (5, 8), (9, 8)].map(|(gpus, of_node)| nodes(gpus, of_node));
        let wanted =
            ["2 of 8 GPUs", "3 of 5 GPUs and one of 1", "3 of 1 GPU", "one of 5", "1 of 8 GPUs and one of 1"];
        assert_eq!(said, wanted);
    }
}
