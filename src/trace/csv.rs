//! In: a [`Trace`]; out: a table of its dispatches, a row for each in each run. Knows nothing else of the crate.

use super::Trace;

/// The columns; begin, end and duration are empty where they are unavailable. `timed_together` is how many dispatches
/// share a time that was measured, of which the row has a part: 1 for one timed by itself.
const COLUMNS: [&str; 13] = [
    "frame",
    "dispatch",
    "name",
    "kernel",
    "grid_x",
    "grid_y",
    "grid_z",
    "flops",
    "bytes",
    "begin_ns",
    "end_ns",
    "duration_ns",
    "timed_together",
];

impl Trace {
    /// Comma-separated values with a heading, as RFC 4180 has them.
    pub fn to_csv(&self) -> String {
        let mut writer = csv::Writer::from_writer(Vec::new());
        let mut write = |row: &[String; COLUMNS.len()]| writer.write_record(row).expect("memory takes every row");
        write(&COLUMNS.map(str::to_owned));
        for (f, frame) in self.frames.iter().enumerate() {
            for (i, (d, time)) in self.dispatches.iter().zip(&frame.times).enumerate() {
                let [x, y, z] = d.grid.map(|n| n.to_string());
                let together = frame.timed_with(i).map_or(1, |(first, last)| last - first + 1);
                let ns = |pick: fn((u64, u64)) -> u64| time.map_or(String::new(), |t| pick(t).to_string());
                write(&[
                    f.to_string(),
                    i.to_string(),
                    d.name.clone(),
                    self.kernel_of(d).to_owned(),
                    x,
                    y,
                    z,
                    d.flops.to_string(),
                    d.bytes.to_string(),
                    ns(|t| t.0),
                    ns(|t| t.1),
                    ns(|t| t.1 - t.0),
                    time.map_or(String::new(), |_| together.to_string()),
                ]);
            }
        }
        let bytes = writer.into_inner().expect("memory takes every row");
        String::from_utf8(bytes).expect("it was made of texts")
    }
}
