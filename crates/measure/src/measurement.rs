//! A whole snapshot measured: every device, or those that were asked for.

use crate::device::DeviceMeasurement;
use crate::snapshot::Snapshot;
use peakledger_input::Problem;
use std::ops::Range;

/// What of a snapshot is measured.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Scope {
    /// This device alone.
    pub device: Option<u32>,
    /// Only these events of each device; peaks are looked for among them.
    pub events: Option<Range<u32>>,
    /// Answer even where more than one event in a hundred makes no sense.
    pub salvage: bool,
}

/// The figures of a snapshot.
#[derive(Clone, Debug)]
pub struct Measurement {
    /// Each device, in order.
    pub devices: Vec<DeviceMeasurement>,
    /// The place in `devices` of the one with the largest peak of allocated bytes.
    pub largest: usize,
}

impl Measurement {
    /// Measures a snapshot. `name` is what the user calls the file.
    ///
    /// # Errors
    /// There is no such device or event, or a sum passes 64 bits.
    pub fn of(name: &str, snapshot: &Snapshot, scope: &Scope) -> Result<Measurement, Problem> {
        let all = snapshot.devices();
        let devices = match scope.device {
            Some(device) if device < all => device..device + 1,
            Some(device) => {
                let problem =
                    Problem::in_option("--device", format!("there is no device {device} in {name}"));
                return Err(problem.mend(match all {
                    0 => "leave it out: the snapshot has no device".to_owned(),
                    all => format!("choose one of 0 to {}", all - 1),
                }));
            }
            None => 0..all,
        };
        if let Some(events) = &scope.events {
            let most = devices.clone().map(|device| snapshot.trace(device).len()).max().unwrap_or(0);
            if events.start as usize >= most {
                let problem =
                    Problem::in_option("--events", format!("event {} is after the last", events.start));
                return Err(problem.mend(format!("there are {most} events, counted from 0")));
            }
        }
        let measure = |device| {
            let measured = DeviceMeasurement::of(snapshot, device, scope.events.clone());
            measured.map_err(|too_large| too_large.problem(name, device))
        };
        let devices = devices.map(measure).collect::<Result<Vec<_>, _>>()?;
        if let Some(device) = devices.iter().find(|device| device.is_senseless())
            && !scope.salvage
        {
            return Err(Problem::in_file(name, device.senseless()).mend(
                "record it again, or answer all the same: `peakledger read --salvage` (the result is marked incomplete)",
            ));
        }
        let peak = |at: &usize| devices.get(*at).map_or(0, |device| device.allocated.peak);
        let largest = (0..devices.len()).rev().max_by_key(peak).unwrap_or(0);
        Ok(Measurement { devices, largest })
    }

    /// Why this is an answer from a part, if so much is lost or wrong.
    pub fn incomplete(&self, snapshot: &Snapshot) -> Option<String> {
        let cut = self.devices.iter().filter_map(DeviceMeasurement::cut_short);
        let senseless = self.devices.iter().filter(|device| device.is_senseless());
        let senseless = senseless.map(|device| {
            let number = device.history.device;
            format!("device {number}: {}", device.senseless())
        });
        let parts: Vec<String> = snapshot.lost.iter().cloned().chain(cut).chain(senseless).collect();
        (!parts.is_empty()).then(|| parts.join("; "))
    }

    /// The device with the largest peak of allocated bytes.
    pub fn largest(&self) -> Option<&DeviceMeasurement> {
        self.devices.get(self.largest)
    }

    /// Everything else that is to be said, of the file and of each device.
    pub fn notes(&self, snapshot: &Snapshot) -> Vec<String> {
        let devices = self.devices.iter().flat_map(|device| device.notes.sentences());
        snapshot.notes.sentences().into_iter().chain(devices).collect()
    }
}
