//! In: records of one or more runs; out: [`Table`], each cell with its ratio to the best PyTorch variant of that cell in the
//! same run and its share of the roofline. Knows neither processes nor how a table is drawn.

use crate::cell::{Cell, Class, Measurement, Outcome, Program, Record};
use crate::line::Measured;
use crate::matrix;
use crate::sizes::{Scale, Sizes};
use serde::Serialize;
use std::collections::BTreeMap;

/// What an adapter reaches, measured in a run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Peak {
    pub flops: f64,
    pub bytes: f64,
}

/// All cells of one adapter and scale.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Table {
    pub adapter: String,
    /// Its name, with the scale where others have it.
    #[serde(skip)]
    pub name: String,
    pub scale: Scale,
    pub driver: String,
    /// Of the last run that measured it.
    pub peak: Option<Peak>,
    /// The runs that cells come from, in the order of their records.
    pub runs: Vec<String>,
    pub rows: Vec<Row>,
}

/// A cell with what follows from it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    #[serde(skip)]
    pub cell: Cell,
    #[serde(flatten)]
    pub measurement: Measurement,
    /// Samples a second of runs that do not wait for each other, or else of those that do.
    pub samples_per_s: Option<f64>,
    /// The model's FLOPs by the median.
    pub tflops: Option<f64>,
    /// The least time that the adapter's measured rates of f32 arithmetic and of memory allow, milliseconds.
    pub floor_ms: Option<f64>,
    /// The floor by the median. Matrix units can make it more than 1.
    pub roofline: Option<f64>,
    /// The best PyTorch variant of this cell in the same run.
    pub pytorch: Option<Best>,
}

/// A variant and how many times as long as another cell it takes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Best {
    pub variant: String,
    /// Its median by that of the cell.
    pub ratio: f64,
}

impl Row {
    pub fn measured(&self) -> Option<&Measured> {
        match &self.measurement.outcome {
            Outcome::Measured(m) => Some(m),
            _ => None,
        }
    }
}

/// A table an adapter and scale, in the order in which they come. Of a cell that one run has several times the last one
/// stands; of one that several runs have, each run's, or with `supersede` the last run's alone.
pub fn tables(records: &[Record], supersede: bool) -> Result<Vec<Table>, String> {
    let mut tables: Vec<Table> = Vec::new();
    let mut peaks: BTreeMap<(&str, &str), Peak> = BTreeMap::new();
    let mut last_peak: BTreeMap<&str, Peak> = BTreeMap::new();
    let mut latest: BTreeMap<(&str, &str, &str), (Cell, &Measurement, usize)> = BTreeMap::new();
    for (place, record) in records.iter().enumerate() {
        match record {
            Record::Run { .. } => {}
            Record::Peak { adapter, run, flops, bytes, .. } => {
                let peak = Peak { flops: *flops, bytes: *bytes };
                peaks.insert((adapter, run), peak);
                last_peak.insert(adapter, peak);
            }
            Record::Cell(m) => {
                let cell: Cell = m.id.parse()?;
                let scale = cell.scale;
                if tables.iter().all(|t| (&t.adapter, t.scale) != (&m.adapter, scale)) {
                    let (adapter, name, driver) = (m.adapter.clone(), m.adapter.clone(), m.driver.clone());
                    tables.push(Table { adapter, name, scale, driver, peak: None, runs: Vec::new(), rows: Vec::new() });
                }
                latest.insert((&m.adapter, &m.id, &m.run), (cell, m, place));
            }
        }
    }
    let adapters: Vec<String> = tables.iter().map(|t| t.adapter.clone()).collect();
    for table in &mut tables {
        if adapters.iter().filter(|a| **a == table.adapter).count() > 1 {
            table.name = format!("{}, {} sizes", table.adapter, table.scale);
        }
        table.peak = last_peak.get(&*table.adapter).copied();
        let all = latest.values().filter(|(c, m, _)| m.adapter == table.adapter && c.scale == table.scale).cloned();
        let mut all: Vec<(Cell, &Measurement, usize)> = all.collect();
        all.sort_by(|(a, _, at), (b, _, bt)| order(a).cmp(&order(b)).then(at.cmp(bt)));
        let last = |(c, _, at): &&(Cell, &Measurement, usize)| all.iter().all(|(d, _, bt)| c != d || bt <= at);
        let shown = all.iter().filter(|cell| !supersede || last(cell));
        table.rows = shown.map(|(c, m, _)| row(c, m, &all, peaks.get(&(&table.adapter, &m.run)))).collect();
        for record in records {
            let Record::Cell(Measurement { run, .. }) = record else { continue };
            if !table.runs.contains(run) && table.rows.iter().any(|r| r.measurement.run == *run) {
                table.runs.push(run.clone());
            }
        }
    }
    Ok(tables)
}

/// By what is compared, then PyTorch's variants before kiln's modes, each as they stand in the matrix.
fn order(cell: &Cell) -> impl Ord {
    (
        (cell.model, cell.phase, cell.weights, cell.class(), cell.program),
        (cell.precision.clone(), matrix::position(cell), cell.variant.clone()),
    )
}

fn row(cell: &Cell, m: &Measurement, all: &[(Cell, &Measurement, usize)], peak: Option<&Peak>) -> Row {
    let sizes = Sizes::of(cell.model, cell.scale);
    let flops = sizes.flops(cell.phase);
    let mut row = Row {
        cell: cell.clone(),
        measurement: m.clone(),
        samples_per_s: None,
        tflops: None,
        floor_ms: None,
        roofline: None,
        pytorch: None,
    };
    let size = if cell.precision == "f16" { 2 } else { 4 };
    row.floor_ms = peak.map(|p| (flops / p.flops).max(sizes.bytes(cell.phase, size) / p.bytes) * 1e3);
    let Outcome::Measured(measured) = &m.outcome else { return row };
    row.samples_per_s = Some(sizes.samples() as f64 / measured.in_flight_ms.unwrap_or(measured.ms) * 1e3);
    row.tflops = Some(flops / measured.ms / 1e9);
    row.roofline = row.floor_ms.map(|floor| floor / measured.ms);
    row.pytorch =
        best(cell, m, all).map(|(other, ms)| Best { variant: other.variant.clone(), ratio: ms / measured.ms });
    row
}

/// The fastest PyTorch variant that is compared with a cell, of the same run.
fn best<'a>(cell: &Cell, m: &Measurement, all: &'a [(Cell, &Measurement, usize)]) -> Option<(&'a Cell, f64)> {
    let same = all.iter().filter(|(c, o, _)| c.program == Program::Pytorch && o.run == m.run && c.compares(cell));
    let times = same.filter_map(|(c, o, _)| match &o.outcome {
        Outcome::Measured(measured) => Some((c, measured.ms)),
        _ => None,
    });
    times.min_by(|(_, a), (_, b)| a.total_cmp(b))
}

/// Of each cell that several runs have the last run's that was measured.
pub fn latest<'a>(rows: &[&'a Row]) -> Vec<&'a Row> {
    let measured = rows.iter().filter(|r| r.measured().is_some());
    // rows of one cell follow each other in the order of their runs
    let mut latest: Vec<&Row> = Vec::new();
    for row in measured {
        latest.retain(|other| other.cell != row.cell);
        latest.push(row);
    }
    latest
}

/// Of the cells that pass, the fastest.
pub fn fastest<'a>(rows: impl IntoIterator<Item = &'a Row>) -> Option<(&'a Row, &'a Measured)> {
    let measured = rows.into_iter().filter_map(|r| Some((r, r.measured()?)));
    measured.min_by(|(_, a), (_, b)| a.ms.total_cmp(&b.ms))
}

/// The classes in the order in which they are shown.
pub const CLASSES: [(Class, &str); 3] = [(Class::F32, "f32"), (Class::Tf32, "TF32, High"), (Class::F16, "f16, Medium")];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::measurement;

    fn peak(run: &str) -> Record {
        let (run, adapter, driver) = (run.into(), "adapter".into(), "driver".into());
        Record::Peak { run, adapter, driver, cpu: false, flops: 50e12, bytes: 4e12 }
    }

    fn ratio(table: &Table, id: &str) -> Option<(String, f64)> {
        let row = table.rows.iter().find(|r| r.measurement.id == id).unwrap();
        row.pytorch.as_ref().map(|b| (b.variant.clone(), b.ratio))
    }

    #[test]
    fn a_ratio_is_to_the_best_pytorch_variant_of_the_same_run() {
        let records = [
            peak("one"),
            Record::Cell(measurement("pytorch/wide/full/he/infer/eager/f32", "one", 20.0)),
            Record::Cell(measurement("pytorch/wide/full/he/infer/graph/f32", "one", 16.0)),
            Record::Cell(measurement("pytorch/wide/full/he/infer/graph/tf32", "one", 2.0)),
            Record::Cell(measurement("pytorch/wide/full/he/train/graph/f32", "one", 3.0)),
            Record::Cell(measurement("kiln/wide/full/he/infer/fused/highest", "one", 32.0)),
            Record::Cell(measurement("kiln/wide/full/he/infer/fused/high", "one", 8.0)),
            // another machine's day
            peak("two"),
            Record::Cell(measurement("pytorch/wide/full/he/infer/compile/f32", "two", 1.0)),
            Record::Cell(measurement("kiln/wide/full/he/infer/recorded/highest", "two", 4.0)),
            Record::Cell(measurement("kiln/wide/full/default/infer/fused/highest", "two", 4.0)),
        ];
        let [table] = tables(&records, false).unwrap().try_into().unwrap();
        assert_eq!(table.runs, ["one", "two"]);
        assert_eq!(ratio(&table, "kiln/wide/full/he/infer/fused/highest"), Some(("graph".into(), 0.5)));
        assert_eq!(ratio(&table, "kiln/wide/full/he/infer/fused/high"), Some(("graph".into(), 0.25)));
        assert_eq!(ratio(&table, "pytorch/wide/full/he/infer/eager/f32"), Some(("graph".into(), 0.8)));
        assert_eq!(ratio(&table, "kiln/wide/full/he/infer/recorded/highest"), Some(("compile".into(), 0.25)));
        assert_eq!(ratio(&table, "kiln/wide/full/default/infer/fused/highest"), None);
    }

    #[test]
    fn small_and_full_sizes_have_tables_of_their_own() {
        let of = |id: &str, ms| Record::Cell(measurement(id, "one", ms));
        let full = [of("kiln/wide/full/he/infer/fused/highest", 18.0), peak("one")];
        let small =
            [of("pytorch/wide/small/he/infer/eager/f32", 1.0), of("kiln/wide/small/he/infer/fused/highest", 2.0)];
        let [alone] = tables(&small, false).unwrap().try_into().unwrap();
        assert_eq!(alone.name, "adapter");
        let both = tables(&[&full[..], &small].concat(), false).unwrap();
        let names: Vec<(&str, usize, bool)> =
            both.iter().map(|t| (t.name.as_str(), t.rows.len(), t.peak.is_some())).collect();
        assert_eq!(names, [("adapter, full sizes", 1, true), ("adapter, small sizes", 2, true)]);
        assert_eq!(ratio(&both[0], "kiln/wide/full/he/infer/fused/highest"), None);
        assert_eq!(ratio(&both[1], "kiln/wide/small/he/infer/fused/highest"), Some(("eager".into(), 0.5)));
    }

    #[test]
    fn a_later_run_s_cell_stands_alone_where_that_is_asked_for() {
        let (kiln, pytorch) = ("kiln/deep/full/he/infer/fused/highest", "pytorch/deep/full/he/infer/graph/f32");
        let records = [
            Record::Cell(measurement(pytorch, "one", 18.0)),
            Record::Cell(measurement(kiln, "one", 10.0)),
            // it was run again
            Record::Cell(measurement(kiln, "one", 9.0)),
            Record::Cell(measurement(pytorch, "two", 14.0)),
            Record::Cell(measurement(kiln, "two", 7.0)),
            Record::Cell(measurement(kiln, "three", 6.0)),
        ];
        let rows = |supersede| {
            let [table] = tables(&records, supersede).unwrap().try_into().unwrap();
            let row =
                |r: &Row| (r.measurement.run.clone(), r.measured().unwrap().ms, r.pytorch.as_ref().map(|b| b.ratio));
            let of = |id: &str| table.rows.iter().filter(|r| r.measurement.id == id).map(row).collect::<Vec<_>>();
            (of(kiln), of(pytorch), table.runs)
        };
        let of = |run: &str, ms, ratio| (run.to_owned(), ms, ratio);
        let (ours, theirs, runs) = rows(false);
        assert_eq!(ours, [of("one", 9.0, Some(2.0)), of("two", 7.0, Some(2.0)), of("three", 6.0, None)]);
        assert_eq!(theirs, [of("one", 18.0, Some(1.0)), of("two", 14.0, Some(1.0))]);
        assert_eq!(runs, ["one", "two", "three"]);
        let (ours, theirs, runs) = rows(true);
        assert_eq!((ours, theirs), (vec![of("three", 6.0, None)], vec![of("two", 14.0, Some(1.0))]));
        assert_eq!(runs, ["two", "three"]);
    }

    #[test]
    fn a_ratio_stays_to_its_own_run_where_pytorch_s_cell_is_superseded() {
        let (kiln, pytorch) = ("kiln/deep/full/he/infer/fused/highest", "pytorch/deep/full/he/infer/graph/f32");
        let records = [
            Record::Cell(measurement(pytorch, "one", 18.0)),
            Record::Cell(measurement(kiln, "one", 9.0)),
            Record::Cell(measurement(pytorch, "two", 9.0)),
        ];
        let [table] = tables(&records, true).unwrap().try_into().unwrap();
        assert_eq!(ratio(&table, kiln), Some(("graph".into(), 2.0)));
    }

    #[test]
    fn the_latest_of_a_cell_is_the_last_run_s_that_was_measured() {
        let (kiln, pytorch) = ("kiln/deep/full/he/infer/fused/highest", "pytorch/deep/full/he/infer/graph/f32");
        let late = Outcome::NotWithin { seconds: 120, what: "first run".into() };
        let records = [
            Record::Cell(measurement(pytorch, "one", 18.0)),
            Record::Cell(measurement(kiln, "one", 9.0)),
            Record::Cell(measurement(kiln, "two", 8.0)),
            Record::Cell(Measurement { outcome: late, ..measurement(pytorch, "two", 0.0) }),
        ];
        let [table] = tables(&records, false).unwrap().try_into().unwrap();
        let latest = latest(&table.rows.iter().collect::<Vec<_>>());
        let runs: Vec<_> = latest.iter().map(|r| (r.measurement.id.as_str(), r.measurement.run.as_str())).collect();
        assert_eq!(runs, [(pytorch, "one"), (kiln, "two")]);
    }

    #[test]
    fn what_was_not_measured_has_no_ratio() {
        let slow = "pytorch/deep/full/he/infer/compile/f32";
        let ended = Outcome::NotWithin { seconds: 120, what: "first run".into() };
        let records = [
            Record::Cell(Measurement { outcome: ended, ..measurement(slow, "one", 0.0) }),
            Record::Cell(measurement("kiln/deep/full/he/infer/fused/highest", "one", 7.0)),
        ];
        let [table] = tables(&records, false).unwrap().try_into().unwrap();
        assert!(table.rows.iter().all(|r| r.pytorch.is_none() && r.roofline.is_none()));
    }

    #[test]
    fn the_floor_is_the_slower_of_arithmetic_and_memory() {
        let records = [
            peak("one"),
            Record::Cell(measurement("kiln/wide/full/he/infer/fused/highest", "one", 20.0)),
            Record::Cell(measurement("kiln/wide/full/he/infer/fused/f16", "one", 20.0)),
        ];
        let [table] = tables(&records, false).unwrap().try_into().unwrap();
        let row = &table.rows[0];
        // 2 · 2048 · 8192² · 3 FLOPs at 50 TFLOP/s
        assert!((row.floor_ms.unwrap() - 16.49).abs() < 0.01, "{:?}", row.floor_ms);
        assert!((row.roofline.unwrap() - 0.8246).abs() < 1e-3, "{:?}", row.roofline);
        assert_eq!(row.samples_per_s, Some(102_400.0));
        assert_eq!(fastest(&table.rows).unwrap().1.ms, 20.0);
    }
}
