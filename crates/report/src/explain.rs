//! The report of `plan --explain`: what is behind a name of a plan, and how each number came about.

use crate::figures::{and_more, grouped};
use crate::markdown::Column::{Figures, Text};
use crate::table::{entry, prose};
use crate::{Look, Report, csv_table, markdown, write_json};
use anstyle::Style;
use peakledger_core::Bytes;
use peakledger_plan::{Explained, Explanation, Plan, Step, When};
use serde::Serialize;
use std::io;

/// What is behind a name of a plan.
#[derive(Debug)]
pub struct ExplainReport<'a> {
    /// What the user calls the model.
    pub model: &'a str,
    /// What was asked for.
    pub asked: &'a str,
    /// The plan.
    pub plan: &'a Plan,
    /// The steps that were asked for; nothing for both.
    pub step: Option<Step>,
    /// What is behind it.
    pub explanation: &'a Explanation,
}

/// `silu in forward, in model.layers.*.mlp.act_fn`.
fn moment(when: &When) -> String {
    let phase = &when.phase;
    match when.module.as_str() {
        "" => format!("{} in {phase}", when.op),
        module => format!("{} in {phase}, in {module}", when.op),
    }
}

fn from(part: &Explained) -> String {
    part.from.as_ref().map_or_else(|| "before the step".to_owned(), moment)
}

fn until(part: &Explained) -> String {
    part.until.as_ref().map_or_else(|| "it stays".to_owned(), moment)
}

/// `32 of [1, 2048, 14336] × 2 B (bf16) = 58,720,256 B, 56.00 MiB each`; a scalar is `[]`.
fn size(part: &Explained) -> String {
    let sizes: Vec<String> = part.shape.iter().map(u64::to_string).collect();
    let (sizes, width, dtype) = (sizes.join(", "), part.dtype.width(), part.dtype.as_str());
    let count = if part.count == 1 { String::new() } else { format!("{} of ", grouped(part.count)) };
    let asked = grouped(part.requested.get());
    let mut text = format!("{count}[{sizes}] × {width} B ({dtype}) = {asked} B");
    if part.each != part.requested {
        text += &format!(", in blocks of 512 B {} B", grouped(part.each.get()));
    }
    text += &format!(", {}", part.each);
    if part.count > 1 { text + " each" } else { text }
}

fn why(part: &Explained) -> String {
    match part.source {
        Some(source) => format!("{} ({source})", part.why),
        None => part.why.clone(),
    }
}

impl ExplainReport<'_> {
    fn parts(&self) -> &[Explained] {
        &self.explanation.parts
    }

    /// What all of it is together.
    fn headline(&self) -> String {
        let Explanation { step, bytes, at_peak, .. } = self.explanation;
        match at_peak {
            true => {
                let peak = self.plan.peak_in(self.step).phase;
                format!("{bytes} of the {} peak in {} of the {} step", peak.peak, peak.phase, step.as_str())
            }
            false => {
                format!("{bytes} in the {} step, of storages that need not be there at once", step.as_str())
            }
        }
    }

    /// What is said of the parts that are not listed.
    fn more(&self, shown: usize) -> Option<String> {
        let rest = self.parts().get(shown..)?;
        let bytes = rest.iter().fold(0, |n: u64, part| n.saturating_add(part.bytes.get()));
        and_more(rest.len(), Bytes::new(bytes))
    }
}

impl Report for ExplainReport<'_> {
    fn table(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let asked = look.name(self.asked);
        prose(out, look, look.bold(), &format!("{asked}: {}", self.headline()))?;
        let shown = look.shown(self.parts().len());
        for part in self.parts().iter().take(shown) {
            writeln!(out)?;
            prose(out, look, look.bold(), &format!("{}  {}", part.bytes, look.text(&part.name)))?;
            for (label, text) in [
                ("size   ", size(part)),
                ("why    ", why(part)),
                ("from   ", from(part)),
                ("until  ", until(part)),
            ] {
                entry(out, look, Style::new(), &format!("  {label}"), &look.text(&text))?;
            }
        }
        if let Some(more) = self.more(shown) {
            writeln!(out)?;
            prose(out, look, look.faint(), &more)?;
        }
        Ok(())
    }

    fn json(&self, out: &mut dyn io::Write) -> io::Result<()> {
        let peak = self.explanation.at_peak.then(|| self.plan.peak_in(self.step).phase);
        let json = ExplainJson {
            model: self.model,
            explained: self.asked,
            step: self.explanation.step.as_str(),
            at_peak: self.explanation.at_peak,
            peak_bytes: peak.map(|phase| phase.peak.get()),
            bytes: self.explanation.bytes.get(),
            parts: self.parts().iter().map(PartJson::of).collect(),
        };
        write_json(out, &json)
    }

    fn csv(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        let titles = [
            "name",
            "category",
            "detail",
            "shape",
            "dtype",
            "requested_bytes",
            "each_bytes",
            "count",
            "bytes",
            "op",
            "why",
            "source",
            "from",
            "until",
        ];
        let row = |part: &Explained| {
            let sizes: Vec<String> = part.shape.iter().map(u64::to_string).collect();
            vec![
                part.name.clone(),
                part.category.to_string(),
                part.detail.map(|detail| detail.as_str().to_owned()).unwrap_or_default(),
                sizes.join("x"),
                part.dtype.as_str().to_owned(),
                part.requested.get().to_string(),
                part.each.get().to_string(),
                part.count.to_string(),
                part.bytes.get().to_string(),
                part.op.unwrap_or_default().to_owned(),
                part.why.clone(),
                part.source.unwrap_or_default().to_owned(),
                from(part),
                until(part),
            ]
        };
        csv_table::write(out, look, &titles, self.parts().iter().map(row))
    }

    fn markdown(&self, out: &mut dyn io::Write, look: &Look) -> io::Result<()> {
        writeln!(out, "**{}**: {}\n", markdown::escaped(self.asked), markdown::escaped(&self.headline()))?;
        let shown = look.shown(self.parts().len());
        let row = |part: &Explained| {
            let texts = [part.name.clone(), size(part), why(part), from(part), until(part)];
            let mut cells = texts.map(|text| markdown::escaped(&text)).to_vec();
            cells.insert(1, part.bytes.to_string());
            cells
        };
        let rows: Vec<Vec<String>> = self.parts().iter().take(shown).map(row).collect();
        let columns =
            [Text("what"), Figures("together"), Text("size"), Text("why"), Text("from"), Text("until")];
        markdown::table(out, &columns, &rows)?;
        if let Some(more) = self.more(shown) {
            writeln!(out, "\n{more}")?;
        }
        Ok(())
    }
}

#[derive(Serialize)]
struct ExplainJson<'a> {
    model: &'a str,
    explained: &'a str,
    step: &'static str,
    /// Whether these are at the op-level peak, or all of the step.
    at_peak: bool,
    peak_bytes: Option<u64>,
    bytes: u64,
    parts: Vec<PartJson<'a>>,
}

#[derive(Serialize)]
struct PartJson<'a> {
    name: &'a str,
    category: &'static str,
    detail: Option<&'static str>,
    shape: &'a [u64],
    dtype: &'static str,
    requested_bytes: u64,
    each_bytes: u64,
    count: u64,
    bytes: u64,
    op: Option<&'static str>,
    why: &'a str,
    source: Option<&'static str>,
    from: Option<WhenJson<'a>>,
    until: Option<WhenJson<'a>>,
}

#[derive(Serialize)]
struct WhenJson<'a> {
    phase: &'a str,
    module: &'a str,
    op: &'static str,
}

impl<'a> PartJson<'a> {
    fn of(part: &'a Explained) -> PartJson<'a> {
        let when =
            |when: &'a When| WhenJson { phase: when.phase.as_str(), module: &when.module, op: when.op };
        PartJson {
            name: &part.name,
            category: part.category.as_str(),
            detail: part.detail.map(|detail| detail.as_str()),
            shape: &part.shape,
            dtype: part.dtype.as_str(),
            requested_bytes: part.requested.get(),
            each_bytes: part.each.get(),
            count: part.count,
            bytes: part.bytes.get(),
            op: part.op,
            why: &part.why,
            source: part.source,
            from: part.from.as_ref().map(when),
            until: part.until.as_ref().map(when),
        }
    }
}
