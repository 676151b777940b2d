//! The report of `plan --post-training`: the phases of a rollout, what scores it and the training step, the peak and who
//! forms it, whether it fits, what is assumed and what is not counted.

use crate::figures::{grouped, percent, share};
use crate::html::Page;
use crate::markdown::Column::{Figures, Text};
use crate::plan::contributor_table;
use crate::show::ShowJson;
use crate::table::{entry, prose};
use crate::{Look, Report, ShowReport, markdown, plot, verdict, write_json};
use anstyle::Style;
use peakledger_core::Bytes;
use peakledger_core::document::LedgerFile;
use peakledger_plan::catalogue::Card;
use peakledger_plan::post_training::{ModelInMemory, PostTrained};
use peakledger_plan::{Assumption, Contributor, Verdict};
use serde::Serialize;
use std::io;

/// A step of post-training and the card that it is to run on.
#[derive(Clone, Copy, Debug)]
pub struct PostTrainingReport<'a> {
    /// What the user calls the model.
    pub name: &'a str,
    /// The plan.
    pub planned: &'a PostTrained,
    /// Its ledger, as it is saved.
    pub file: &'a LedgerFile,
    /// The card.
    pub card: Option<&'a Card>,
}

impl PostTrainingReport<'_> {
    fn show(&self) -> ShowReport<'_> {
        ShowReport { name: self.name, file: self.file }
    }

    /// Whether it fits the card.
    pub fn verdict(&self) -> Option<Verdict> {
        self.card.map(|card| self.planned.verdict(card))
    }

    fn verdict_line(&self) -> Option<String> {
        let (card, verdict) = (self.card?, self.verdict()?);
        Some(verdict::sentence(&self.planned.actor, card, verdict, self.file.ledger.peak().bytes))
    }

    /// `peak 30.11 GiB in rollout`, and what runs there.
    fn peak_lines(&self) -> (String, Option<&str>) {
        let peak = self.file.ledger.peak();
        let algorithm = self.planned.request.algorithm.as_str();
        let ranks = self.ranks();
        (
            format!("peak {} in {} of a {algorithm} step{ranks}", peak.bytes, peak.slot.id()),
            self.file.peak_op(),
        )
    }

    /// Whose step it is, where there are several ranks.
    fn ranks(&self) -> String {
        let PostTrained { actor, ranks_differ, request, .. } = self.planned;
        let (world, rank) = (actor.mesh.world, actor.options.parallel.rank);
        match (request.rank, ranks_differ) {
            _ if world == 1 => String::new(),
            (Some(_), _) => format!(" on rank {rank} of {world}"),
            (None, true) => format!(" on rank {rank} of {world}, which needs most"),
            (None, false) => format!(" on each of {world} ranks"),
        }
    }

    fn host_line(&self) -> Option<String> {
        let host = self.file.ledger.cpu_peak();
        (host > Bytes::ZERO).then(|| format!("beside it, up to {host} on the cpu"))
    }

    /// Who forms the peak, and the peak.
    fn contributors(&self) -> (Vec<Contributor>, Bytes) {
        let peak = self.file.ledger.peak();
        (self.planned.contributors(peak.moment), peak.bytes)
    }
}

/// `actor: 494,032,768 parameters, 1.84 GiB of weights, 3.68 GiB of optimizer state`.
fn model_line(model: &ModelInMemory) -> String {
    let (parameters, weights) = (grouped(model.parameters), model.weights);
    let mut text = format!("{}: {parameters} parameters, {weights} of weights", model.name);
    let kept = [
        (model.optimizer_state, "optimizer state"),
        (model.master_weights, "master weights"),
        (model.gradients, "gradient buffers"),
    ];
    for (bytes, what) in kept.into_iter().filter(|(bytes, _)| *bytes > Bytes::ZERO) {
        text += &format!(", {bytes} of {what}");
    }
    text
}

impl Report for PostTrainingReport<'_> {
    fn table(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let text = |out: &mut dyn io::Write, style, text: &str| prose(out, look, style, &look.text(text));
        let (peak, op) = self.peak_lines();
        text(out, look.bold(), &peak)?;
        if let Some(op) = op {
            text(out, Style::new(), &format!("at {op}"))?;
        }
        if let (Some(line), Some(verdict)) = (self.verdict_line(), self.verdict()) {
            text(out, look.verdict(verdict.fits()), &line)?;
        }
        if let Some(line) = self.host_line() {
            text(out, Style::new(), &line)?;
        }
        text(out, look.faint(), &look.name(self.name))?;
        for model in &self.planned.models {
            text(out, look.faint(), &model_line(model))?;
        }
        writeln!(out)?;
        for assumption in &self.planned.assumptions {
            let label = format!("{:<11}", assumption.topic);
            entry(out, look, look.faint(), &label, &look.text(&assumption.value))?;
        }
        writeln!(out)?;
        let show = self.show();
        let (phases, more) = show.phase_table(look);
        phases.write(out, look)?;
        if let Some(more) = more {
            text(out, look.faint(), &more)?;
        }
        if look.plot {
            writeln!(out)?;
            plot::ledger(&self.file.ledger, out, look)?;
        }
        writeln!(out)?;
        text(out, look.bold(), "at the peak")?;
        let (contributors, peak) = self.contributors();
        contributor_table(&contributors, peak, out, look)?;
        writeln!(out)?;
        for line in &self.planned.not_counted {
            entry(out, look, look.faint(), "not counted: ", &look.text(line))?;
        }
        Ok(())
    }

    fn json(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let (contributors, peak) = self.contributors();
        let group = |c: &Contributor| GroupJson {
            name: c.name.clone(),
            category: c.category.as_str(),
            bytes: c.bytes.get(),
            share: share(c.bytes, peak),
            count: c.count,
        };
        let model = |model: &ModelInMemory| ModelJson {
            name: model.name,
            parameters: model.parameters,
            weights_bytes: model.weights.get(),
            optimizer_bytes: model.kept_to_train().get(),
        };
        let (show, planned) = (self.show(), self.planned);
        let verdict = self.card.zip(self.verdict()).map(|(card, verdict)| VerdictJson {
            gpu: &card.name,
            capacity_bytes: verdict.capacity.get(),
            fits: verdict.fits(),
            headroom_bytes: verdict.headroom(),
            needed_bytes: verdict.needed.get(),
            compared: "device_peak + outside",
        });
        let assumption = |it: &Assumption| AssumptionJson { topic: it.topic, value: it.value.clone() };
        let json = PostTrainingJson {
            show: ShowJson(&show),
            post_training: StepJson {
                algorithm: planned.request.algorithm.as_str(),
                prompt_len: planned.request.prompt_len,
                response_len: planned.request.response_len,
                world: planned.actor.mesh.world,
                rank: planned.actor.options.parallel.rank,
                ranks_differ: planned.ranks_differ,
                rollout_sequences: planned.sequences,
                kv_cache_bytes: planned.kv_cache.get(),
                models: planned.models.iter().map(model).collect(),
                contributors: contributors.iter().map(group).collect(),
            },
            outside_bytes: planned.actor.outside(self.card).get(),
            reserved_bytes: None,
            verdict,
            assumptions: planned.assumptions.iter().map(assumption).collect(),
            not_counted: &planned.not_counted,
        };
        write_json(out, &json)
    }

    fn csv(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        self.show().csv(out, look)
    }

    fn markdown(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        for line in self.verdict_line().iter().chain(&self.host_line()) {
            writeln!(out, "{}\n", markdown::escaped(line))?;
        }
        let rows = self.planned.assumptions.iter();
        let rows = rows.map(|it| vec![markdown::escaped(it.topic), markdown::escaped(&it.value)]);
        markdown::table(out, &[Text("assumed"), Text("")], &rows.collect::<Vec<_>>())?;
        writeln!(out)?;
        let (contributors, peak) = self.contributors();
        let shown = look.shown(contributors.len());
        let row = |c: &Contributor| {
            let share = percent(c.bytes, peak);
            vec![markdown::escaped(&c.name), c.category.to_string(), c.bytes.to_string(), share]
        };
        let rows: Vec<Vec<String>> = contributors.iter().take(shown).map(row).collect();
        markdown::table(
            out,
            &[Text("at the peak"), Text("category"), Figures("size"), Figures("share")],
            &rows,
        )?;
        writeln!(out)?;
        self.show().markdown(out, look)?;
        writeln!(out)?;
        for line in &self.planned.not_counted {
            writeln!(out, "Not counted: {}", markdown::escaped(line))?;
        }
        Ok(())
    }

    fn page(&self) -> io::Result<Option<Page>> {
        let mut page = self.show().html_page();
        let said = self.planned.assumptions.iter();
        page.facts.extend(said.map(|it| (it.topic.to_owned(), it.value.clone())));
        Ok(Some(page))
    }
}

/// The fields of `show`, and beside them those of post-training.
#[derive(Serialize)]
struct PostTrainingJson<'a> {
    #[serde(flatten)]
    show: ShowJson<'a>,
    post_training: StepJson,
    outside_bytes: u64,
    /// Not predicted here.
    reserved_bytes: Option<u64>,
    verdict: Option<VerdictJson<'a>>,
    assumptions: Vec<AssumptionJson>,
    not_counted: &'a [&'static str],
}

#[derive(Serialize)]
struct StepJson {
    algorithm: &'static str,
    prompt_len: u64,
    response_len: u64,
    /// All ranks, and the one whose step this is: where they differ, the one that needs most.
    world: u32,
    rank: u32,
    ranks_differ: bool,
    /// Of each rank.
    rollout_sequences: u64,
    kv_cache_bytes: u64,
    models: Vec<ModelJson>,
    /// Of the peak, grouped.
    contributors: Vec<GroupJson>,
}

#[derive(Serialize)]
struct ModelJson {
    name: &'static str,
    parameters: u64,
    weights_bytes: u64,
    optimizer_bytes: u64,
}

#[derive(Serialize)]
struct GroupJson {
    name: String,
    category: &'static str,
    bytes: u64,
    share: f64,
    count: u32,
}

#[derive(Serialize)]
struct VerdictJson<'a> {
    gpu: &'a str,
    capacity_bytes: u64,
    fits: bool,
    headroom_bytes: i128,
    needed_bytes: u64,
    compared: &'static str,
}

#[derive(Serialize)]
struct AssumptionJson {
    topic: &'static str,
    value: String,
}
