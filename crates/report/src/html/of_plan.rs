//! The page of a plan: the step with the peak, the other step, and each candidate; all of them at op level.

use super::document::{Contributor, Exact, Measure, Page, Role, Series, Verdict};
use super::picture::Picture;
use super::series::{Room, drawn, that_fit};
use super::states::{short, states};
use crate::figures::grouped;
use crate::plan::{assumed, id, ledger_of};
use crate::side_by_side::side_by_side;
use crate::{PlanReport, Reservation};
use peakledger_plan::{Plan, PlannedPhase, Step};
use std::io;

/// What the contributors of a plan, which are groups, may take.
const GROUPS: usize = 40_000;

impl PlanReport<'_> {
    /// Its page.
    ///
    /// # Errors
    /// Where the names of a plan make no ledger, which would be a fault of the planner.
    pub(crate) fn html_page(&self) -> io::Result<Page> {
        self.page_in(Room::SUBJECT, Room::shared(self.candidates.len() + 1), planned)
    }

    /// The page while a knob moves: coarse and quick, and its states are not told apart.
    ///
    /// # Errors
    /// As of [`page`](crate::Report::page).
    pub fn page_in_motion(&self) -> io::Result<Page> {
        self.page_in(Room::IN_MOTION, Room::BESIDE_IN_MOTION, in_motion)
    }

    /// Its page with so much room for its subject, and for each other series, of which each is made so.
    fn page_in(&self, subjects: Room, room: Room, make: Make) -> io::Result<Page> {
        let subject = self.plan.peak_in(self.step).step.step;
        let mut asked = vec![(subject.as_str(), Role::Subject, self.plan, subject, subjects)];
        let other = if subject == Step::First { Step::Steady } else { Step::First };
        if self.step.is_none() {
            asked.push((other.as_str(), Role::Step, self.plan, other, room));
        }
        asked.extend(self.candidates.iter().map(|(name, plan)| {
            (name.as_str(), Role::Candidate, plan, plan.peak_in(self.step).step.step, room)
        }));
        let made = side_by_side(&asked, |(name, role, plan, step, room)| {
            let made = self.with_reserved(plan, *step, make(name, *role, plan, *step, *room)?);
            Ok::<_, io::Error>(made)
        });
        let mut all = made.into_iter().collect::<io::Result<Vec<Series>>>()?;
        let candidates = all.iter_mut().filter(|series| series.role == Role::Candidate);
        for ((one, (_, plan)), saving) in candidates.zip(self.candidates).zip(self.savings()) {
            one.saving = Some(saving);
            one.verdict = self.verdict_json(plan);
        }
        let parameters = match (self.plan.parameters, self.plan.trainable) {
            (all, trained) if all == trained => format!("{} parameters", grouped(all)),
            (all, trained) => format!("{} parameters, {} of them trained", grouped(all), grouped(trained)),
        };
        let assumed = assumed(self.plan, self.origins);
        let notes = self.caveats().into_iter().map(|line| ("note".to_owned(), line));
        let assumed = assumed.map(|(topic, value)| (topic.to_owned(), value));
        let mut facts: Vec<(String, String)> = notes.chain(assumed).collect();
        facts.extend(self.rank_facts());
        facts.extend(self.host_line().map(|line| ("host".to_owned(), line)));
        Ok(Page {
            version: env!("CARGO_PKG_VERSION"),
            title: short(self.name).into_owned(),
            subtitle: Some(parameters),
            measure: Measure::OpLevel,
            verdict: self.verdict_json(self.plan),
            device_peak: Some(Exact(self.plan.device_peak_in(self.step).phase.device_peak.get())),
            series: all,
            facts,
            not_counted: self.not_counted().into_iter().map(str::to_owned).collect(),
            ..Page::default()
        })
    }

    /// The series of a step and what is reserved for it.
    fn with_reserved(&self, plan: &Plan, step: Step, series: Series) -> Series {
        let reserved = self.reservation_of(plan).map(|reservation| reserved(reservation, step));
        Series { reserved: reserved.unwrap_or_default(), ..series }
    }

    fn verdict_json(&self, plan: &Plan) -> Option<Verdict> {
        let (card, verdict) = (self.card?, self.verdict_of(plan)?);
        Some(Verdict {
            gpu: short(card.full_name.as_deref().unwrap_or(&card.name)).into_owned(),
            fits: verdict.fits(),
            needed: Exact(verdict.needed.get()),
            reserved: self.reservation_of(plan).map(|reservation| Exact(reservation.reserved().get())),
            outside: Exact(plan.outside(Some(card)).get()),
            capacity: Exact(verdict.capacity.get()),
            headroom: verdict.headroom(),
        })
    }
}

/// Changes of the reserved bytes that are drawn.
const MOST_CHANGES: usize = 2048;

/// The reserved bytes of a step from each moment on at which they change; of many changes, the most in each of a few.
fn reserved(reservation: &Reservation, step: Step) -> Vec<(u32, Exact)> {
    let changes = || reservation.over_time.iter();
    let before = changes().take_while(|(of, ..)| *of != step).last().map(|(_, _, bytes)| (0, *bytes));
    let within = changes().filter(|(of, ..)| *of == step).map(|(_, moment, bytes)| (moment.0, *bytes));
    let all: Vec<(u32, u64)> = before.into_iter().chain(within).collect();
    let most = |chunk: &[(u32, u64)]| {
        let bytes = chunk.iter().map(|(_, bytes)| *bytes).max();
        chunk.first().zip(bytes).map(|((moment, _), bytes)| (*moment, Exact(bytes)))
    };
    all.chunks(all.len().div_ceil(MOST_CHANGES).max(1)).filter_map(most).collect()
}

/// What makes a series of a step.
type Make = fn(&str, Role, &Plan, Step, Room) -> io::Result<Series>;

/// A step of a plan with its states.
fn planned(name: &str, role: Role, plan: &Plan, step: Step, room: Room) -> io::Result<Series> {
    let ledger = ledger_of(plan, step)?;
    let series = series_of(name, role, plan, &Picture::of(&ledger), (step, room));
    Ok(Series { states: states(&ledger, room.states, room.bytes), ..series })
}

/// A step of a plan without them.
fn in_motion(name: &str, role: Role, plan: &Plan, step: Step, room: Room) -> io::Result<Series> {
    let picture = Picture::of_stays(&plan.step(step).timeline, plan.stays(step));
    let picture = picture.map_err(|_| io::Error::other("a planned step passes 64 bits"))?;
    Ok(series_of(name, role, plan, &picture, (step, room)))
}

/// The picture of a step of a plan, with the contributors as people think of them.
fn series_of(
    name: &str,
    role: Role,
    plan: &Plan,
    picture: &Picture<'_>,
    (step, room): (Step, Room),
) -> Series {
    let of_step = plan.step(step);
    let ops: Vec<String> = of_step.phases.iter().map(PlannedPhase::place).collect();
    let mut series = drawn(name, role, picture, ops.iter().map(|op| Some(op.as_str())), room);
    // those that are drawn are in order, so each is looked for after the one before
    let mut planned = of_step.phases.iter();
    for phase in &mut series.phases {
        let same = |p: &&PlannedPhase| p.phase.as_str() == phase.phase && p.micro_batch == phase.micro_batch;
        if let Some(planned) = planned.find(same) {
            phase.device = Some(Exact(planned.device_peak.get()));
            phase.id = id(planned, plan.options.gradient_accumulation_steps > 1);
        }
    }
    series.peak.phase = id(of_step.peak().phase, plan.options.gradient_accumulation_steps > 1);
    let groups = plan.contributors_at(of_step.peak());
    let count = groups.len();
    let groups = groups.into_iter().map(|group| Contributor {
        name: group.name,
        category: group.category.as_str(),
        detail: group.detail.map(|detail| detail.as_str()),
        bytes: Exact(group.bytes.get()),
        count: group.count,
    });
    series.contributors = that_fit(groups, GROUPS.min(room.bytes / 5));
    let shown: u64 = series.contributors.iter().map(|c| c.bytes.0).sum();
    series.contributors_left_out =
        (count - series.contributors.len(), Exact(of_step.peak().phase.peak.get() - shown));
    series
}
