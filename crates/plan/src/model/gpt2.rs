//! `gpt2`: learned positions, LayerNorm, `Conv1D` matrices, dropout everywhere
//! (`transformers/models/gpt2/modeling_gpt2.py`).

use super::attention::{Attend, heads, merge_heads};
use super::decoder::Masks;
use super::mlp::activate;
use super::{Batch, Block, Blueprint, Model, Run, run_blocks};
use crate::config::reader::Defaults;
use crate::config::{Activation, Reader, Shape};
use crate::nn::{Builder, Conv1d, Embedding, Linear, Norm, NormKind};
use crate::torch::{ModuleId, Tensor, ops};
use peakledger_input::Problem;
use std::rc::Rc;
use std::sync::Arc;

#[derive(Clone, Copy, Debug)]
struct Gpt2 {
    inner: u64,
    activation: Activation,
    resid_pdrop: f64,
    embd_pdrop: f64,
}

pub(super) fn read(reader: &mut Reader<'_>) -> Result<(Shape, Arc<dyn Blueprint>), Problem> {
    let defaults = Defaults {
        max_position_embeddings: 1024,
        tie_word_embeddings: true,
        num_key_value_heads: None,
        head_dim: None,
    };
    let mut shape = reader.shape(&defaults)?;
    reader.whole_heads(&shape)?;
    shape.learned_positions = true;
    shape.attention_dropout = reader.probability("attn_pdrop", 0.1)?;
    let gpt2 = Gpt2 {
        inner: reader.optional_size(&["n_inner"])?.unwrap_or(shape.hidden_size.saturating_mul(4)),
        activation: reader.activation("activation_function", Activation::GeluNew)?,
        resid_pdrop: reader.probability("resid_pdrop", 0.1)?,
        embd_pdrop: reader.probability("embd_pdrop", 0.1)?,
    };
    Ok((shape, Arc::new(gpt2)))
}

impl Blueprint for Gpt2 {
    fn build(&self, build: &mut Builder, shape: &Shape, run: Run) -> Box<dyn Model> {
        let root = build.root();
        let transformer = build.module(root, "transformer");
        let hidden = shape.hidden_size;
        let part = run.part;
        let embeddings = part.embeds.then(|| Embeddings {
            wte: Embedding::new(build, transformer, "wte", [shape.vocab_size, hidden]),
            wpe: Embedding::new(build, transformer, "wpe", [shape.max_position_embeddings, hidden]),
        });
        let list = build.module(transformer, "h");
        let blocks = part.layers().map(|index| {
            let module = build.indexed(list, index);
            Rc::new(Gpt2Block::new(build, module, shape, self, run.attend))
        });
        let blocks = blocks.collect();
        let ln_f = part.ends.then(|| Norm::new(build, transformer, "ln_f", NormKind::Layer, hidden));
        let lm_head = part.ends.then(|| match &embeddings {
            Some(Embeddings { wte, .. }) if shape.tie_word_embeddings => {
                Linear::tied(build, root, "lm_head", &wte.weight, [shape.vocab_size, hidden])
            }
            _ => Linear::new(build, root, "lm_head", (hidden, shape.vocab_size), false),
        });
        Box::new(Gpt2Lm { transformer, embeddings, blocks, ln_f, lm_head, embd_pdrop: self.embd_pdrop, run })
    }
}

/// Of tokens and of their positions.
struct Embeddings {
    wte: Embedding,
    wpe: Embedding,
}

struct Gpt2Lm {
    transformer: ModuleId,
    embeddings: Option<Embeddings>,
    blocks: Vec<Rc<Gpt2Block>>,
    ln_f: Option<Norm>,
    lm_head: Option<Linear>,
    embd_pdrop: f64,
    run: Run,
}

impl Model for Gpt2Lm {
    fn decode(&self, batch: &Batch) -> Tensor {
        let input = &batch.input;
        let torch = input.torch();
        torch.inside(self.transformer, || {
            let inputs_embeds = match &self.embeddings {
                Some(Embeddings { wte, .. }) => {
                    input.seen(); // `input_ids.view(…)`
                    self.run.input(wte.forward(input), wte.module)
                }
                None => input.clone(),
            };
            let position_ids = ops::unsqueeze(ops::add_scalar(ops::arange(torch, input.size(1))), 0);
            let position_embeds = self.embeddings.as_ref().map(|it| it.wpe.forward(&position_ids));
            let mut hidden_states = match &position_embeds {
                Some(position_embeds) => ops::add(&inputs_embeds, position_embeds),
                None => inputs_embeds.clone(),
            };
            if let Some(mask) = &batch.attention_mask {
                mask.seen(); // `attention_mask.view(…)`
            }
            let masks = Masks::new(self.run.attend, None, batch, inputs_embeds.dtype());
            if self.embeddings.is_some() {
                hidden_states = ops::dropout(&hidden_states, self.embd_pdrop);
            }
            let block = |block: &Rc<Gpt2Block>| -> Block {
                let (block, mask, position_ids) =
                    (block.clone(), masks.of(false).cloned(), position_ids.clone());
                Box::new(move |hidden_states| {
                    let _handed_on = &position_ids;
                    block.forward(hidden_states, mask.as_ref())
                })
            };
            let blocks = self.blocks.iter().map(block).collect();
            let hidden_states = run_blocks(hidden_states, blocks, self.run);
            match &self.ln_f {
                Some(ln_f) => ln_f.forward(&hidden_states),
                None => hidden_states,
            }
        })
    }

    fn head(&self) -> Option<&Linear> {
        self.lm_head.as_ref()
    }
}

struct Gpt2Block {
    module: ModuleId,
    ln_1: Norm,
    attn: Attention,
    ln_2: Norm,
    mlp: Mlp,
}

impl Gpt2Block {
    fn new(build: &mut Builder, module: ModuleId, shape: &Shape, gpt2: &Gpt2, attend: Attend) -> Gpt2Block {
        let norm =
            |build: &mut Builder, name| Norm::new(build, module, name, NormKind::Layer, shape.hidden_size);
        Gpt2Block {
            module,
            ln_1: norm(build, "ln_1"),
            attn: Attention::new(build, module, shape, gpt2, attend),
            ln_2: norm(build, "ln_2"),
            mlp: Mlp::new(build, module, shape.hidden_size, gpt2),
        }
    }

    fn forward(&self, input: &Tensor, mask: Option<&Tensor>) -> Tensor {
        input.torch().inside(self.module, || {
            let mut hidden_states = self.ln_1.forward(input);
            let (attn_output, _attention_weights) = self.attn.forward(&hidden_states, mask);
            hidden_states = ops::add(&attn_output, input);

            let residual = hidden_states.clone();
            hidden_states = self.ln_2.forward(&hidden_states);
            let feed_forward_hidden_states = self.mlp.forward(&hidden_states);
            ops::add(&residual, &feed_forward_hidden_states)
        })
    }
}

struct Attention {
    module: ModuleId,
    resid_dropout: ModuleId,
    c_attn: Conv1d,
    c_proj: Conv1d,
    head_dim: u64,
    attn_pdrop: f64,
    resid_pdrop: f64,
    attend: Attend,
}

impl Attention {
    fn new(build: &mut Builder, parent: ModuleId, shape: &Shape, gpt2: &Gpt2, attend: Attend) -> Attention {
        let module = build.module(parent, "attn");
        let hidden = shape.hidden_size;
        Attention {
            module,
            c_attn: Conv1d::new(build, module, "c_attn", (hidden, hidden.saturating_mul(3))),
            c_proj: Conv1d::new(build, module, "c_proj", (hidden, hidden)),
            resid_dropout: build.module(module, "resid_dropout"),
            head_dim: shape.head_dim,
            attn_pdrop: shape.attention_dropout,
            resid_pdrop: gpt2.resid_pdrop,
            attend,
        }
    }

    fn forward(&self, hidden_states: &Tensor, mask: Option<&Tensor>) -> (Tensor, Option<Tensor>) {
        let torch = hidden_states.torch();
        torch.inside(self.module, || {
            let [query, key, value] = {
                let qkv = self.c_attn.forward(hidden_states);
                let width = qkv.size(-1) / 3;
                ops::split_last(&qkv, [width; 3]).map(|part| heads(&part, self.head_dim))
            };
            let (attended, weights) = match self.attend {
                Attend::Eager => self.eager([&query, &key, &value], mask),
                sdpa => {
                    let scores = super::attention::Scores { dropout: self.attn_pdrop, softcap: false };
                    super::attention::attend(sdpa, [&query, &key, &value], mask, scores)
                }
            };
            let mut attn_output = merge_heads(attended);
            attn_output = self.c_proj.forward(&attn_output);
            attn_output = torch.inside(self.resid_dropout, || ops::dropout(&attn_output, self.resid_pdrop));
            (attn_output, weights)
        })
    }

    /// Softmax in the scores' own type, and no copy into `[b, s, h, d]`.
    fn eager(&self, [q, k, v]: [&Tensor; 3], mask: Option<&Tensor>) -> (Tensor, Option<Tensor>) {
        let (k, v) = &q.torch().cached(k, v);
        let mut weights = ops::mul_scalar(ops::matmul(q, ops::transpose(k, -1, -2)));
        if let Some(mask) = mask {
            weights = ops::add(&weights, mask);
        }
        weights = ops::softmax(&weights);
        weights = ops::to(&weights, v.dtype());
        weights = ops::dropout(&weights, self.attn_pdrop);
        let attended = ops::matmul(&weights, v);
        (ops::transpose(&attended, 1, 2), Some(weights))
    }
}

struct Mlp {
    module: ModuleId,
    act: ModuleId,
    dropout: ModuleId,
    activation: Activation,
    c_fc: Conv1d,
    c_proj: Conv1d,
    resid_pdrop: f64,
}

impl Mlp {
    fn new(build: &mut Builder, parent: ModuleId, hidden: u64, gpt2: &Gpt2) -> Mlp {
        let module = build.module(parent, "mlp");
        Mlp {
            module,
            c_fc: Conv1d::new(build, module, "c_fc", (hidden, gpt2.inner)),
            c_proj: Conv1d::new(build, module, "c_proj", (gpt2.inner, hidden)),
            act: build.module(module, "act"),
            dropout: build.module(module, "dropout"),
            activation: gpt2.activation,
            resid_pdrop: gpt2.resid_pdrop,
        }
    }

    fn forward(&self, hidden_states: &Tensor) -> Tensor {
        let torch = hidden_states.torch();
        torch.inside(self.module, || {
            let mut hidden_states = self.c_fc.forward(hidden_states);
            hidden_states = torch.inside(self.act, || activate(self.activation, hidden_states.clone()));
            hidden_states = self.c_proj.forward(&hidden_states);
            torch.inside(self.dropout, || ops::dropout(&hidden_states, self.resid_pdrop))
        })
    }
}
