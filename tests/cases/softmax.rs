//! Softmax and its logarithm.

use crate::common::{BOTH, Case, Result, f16, full, random, tensor};
use kiln::graph::DType;

const NAN: f64 = f64::NAN;
const INF: f64 = f64::INFINITY;

/// Numbers whose exponentials overflow, in a short and in a long row.
#[test]
fn s01_softmax_of_large_numbers() {
    let mut c = Case::new();
    let x = c.input(tensor(DType::F32, &[1, 3], &[1000.0, 1001.0, 1002.0]));
    let y = c.b.softmax(x, 1);
    c.output("short", y);
    let long: Vec<f64> = (0..300).map(|i| 1000.0 + f64::from(i % 3)).collect();
    let x = c.input(tensor(DType::F32, &[1, 300], &long));
    let y = c.b.softmax(x, 1);
    c.output("long", y);
    let want = [0.09003057, 0.24472847, 0.66524096];
    let long: Vec<f64> = (0..300).map(|i| want[i % 3] / 100.0).collect();
    c.expect(&BOTH, 1e-6, &[("short", &want), ("long", &long)]);
}

/// Numbers whose exponentials vanish.
#[test]
fn s02_softmax_of_very_negative_numbers() {
    let mut c = Case::new();
    let x = c.input(tensor(DType::F32, &[1, 2], &[-1000.0, -1000.0]));
    let y = c.b.softmax(x, 1);
    c.output("y", y);
    let x = c.input(full(DType::F32, &[1, 200], -1e30));
    let y = c.b.softmax(x, 1);
    c.output("long", y);
    c.expect(&BOTH, 1e-6, &[("y", &[0.5, 0.5]), ("long", &[0.005; 200])]);
}

/// Rows of every width up to 1000, most of them narrower than a workgroup or not a whole number of them: invocations
/// without an element must not spoil a row.
#[test]
fn s03_softmax_of_every_width() -> Result {
    let mut c = Case::new();
    let x = c.input(full(DType::F32, &[1000], 0.7));
    let rows = [(2, (1..=1000).collect::<Vec<usize>>()), (40, vec![1, 2, 31, 32, 33, 63, 64, 65, 100, 257, 999])];
    for (rows, widths) in &rows {
        for n in widths {
            let row = c.b.slice(x, 0, 0, *n)?;
            let same = c.b.broadcast(row, [*rows, *n])?;
            let y = c.b.softmax(same, 1);
            c.output(format!("{rows} {n}"), y);
        }
    }
    c.run(&BOTH, |setup, outputs| {
        for (name, y) in outputs {
            let n = y.shape().last() as f64;
            assert!(y.to_f64().iter().all(|v| (v - 1.0 / n).abs() < 1e-6), "{name} ({setup}): {y:?}");
        }
    });
    Ok(())
}

/// One row of half a million.
#[test]
fn s05_softmax_of_one_very_wide_row() {
    let n = 524_288;
    let mut c = Case::new();
    let x = c.input(full(DType::F32, &[1, n], 0.0));
    let y = c.b.softmax(x, 1);
    c.output("y", y);
    c.run(&BOTH, |setup, outputs| {
        let apart = outputs["y"].to_f64().iter().map(|v| (v * n as f64 - 1.0).abs()).fold(0.0, f64::max);
        assert!(apart < 1e-5, "{setup}: off by {apart}");
    });
}

/// The second sequence of a batch comes out as it does alone.
#[test]
fn s07_a_sequence_in_a_batch_is_as_alone() -> Result {
    let mut c = Case::new();
    let x = c.input(random(DType::F32, &[2, 5, 33], 1));
    let q = c.input(random(DType::F32, &[2, 7, 8], 2));
    let mut of = |start, len| -> Result<_> {
        let x = c.b.slice(x, 0, start, len)?;
        let q = c.b.slice(q, 0, start, len)?;
        Ok([c.b.softmax(x, 2)?, c.b.attention(q, q, q, 2, 0.5, true, None, None)?])
    };
    let (batch, alone) = (of(0, 2)?, of(1, 1)?);
    for (i, name) in ["softmax", "attention"].into_iter().enumerate() {
        let second = c.b.slice(batch[i], 0, 1, 1)?;
        let apart = c.b.sub(second, alone[i]);
        c.output(name, apart);
    }
    c.expect(&BOTH, 1e-6, &[("softmax", &[0.0; 5 * 33]), ("attention", &[0.0; 7 * 8])]);
    Ok(())
}

/// Along an axis that is not the last.
#[test]
fn s08_softmax_over_the_first_axis() {
    let mut c = Case::new();
    let x = c.input(tensor(DType::F32, &[2, 2], &[0.0, 1.0, 0.0, 1.0]));
    let y = c.b.softmax(x, 0);
    c.output("y", y);
    let x = c.input(full(DType::F32, &[2, 3, 5], 4.0));
    let y = c.b.softmax(x, 1);
    c.output("middle", y);
    let y = c.b.log_softmax(x, 0);
    c.output("logarithm", y);
    let (third, half) = ([1.0 / 3.0; 30], [0.5f64.ln(); 30]);
    c.expect(&BOTH, 1e-6, &[("y", &[0.5; 4]), ("middle", &third), ("logarithm", &half)]);
}

/// Every row of a large softmax sums to one; none is left out.
#[test]
fn s09_rows_of_a_large_softmax_sum_to_one() -> Result {
    let mut c = Case::new();
    let x = c.input(random(DType::F32, &[12, 1024, 1024], 1));
    let y = c.b.softmax(x, 2)?;
    let sums = c.b.sum(y, &[2]);
    c.output("sums", sums);
    c.run(&BOTH, |setup, outputs| {
        for (i, sum) in outputs["sums"].to_f64().iter().enumerate() {
            assert!((sum - 1.0).abs() < 1e-4, "row {i} ({setup}): {sum}");
        }
    });
    Ok(())
}

/// As docs/semantics.md says: a row with +∞ or NaN, or of −∞ alone, is all NaN, and no other row is touched.
#[test]
fn s10_rows_where_numbers_run_out() {
    for dtype in [DType::F32, DType::F16] {
        if dtype == DType::F16 && !f16() {
            continue;
        }
        let mut c = Case::new();
        let mut want = Vec::new();
        // one invocation a row, a workgroup a row, four at a time
        for n in [3, 301, 400] {
            let row = |first: f64, rest: f64| {
                let mut row = vec![rest; n];
                row[1] = first;
                row
            };
            let finite = 1.0 / n as f64;
            let rows = [
                (row(INF, 1.0), vec![NAN; n]),
                (row(2.0, 2.0), vec![finite; n]),
                (row(NAN, 1.0), vec![NAN; n]),
                (row(-INF, -INF), vec![NAN; n]),
                (row(0.0, -INF), row(1.0, 0.0)),
                (row(2.0, 2.0), vec![finite; n]),
            ];
            let (x, y): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
            let x = c.input(tensor(dtype, &[6, n], &x.concat()));
            let softmax = c.b.softmax(x, 1);
            c.output(format!("softmax {n}"), softmax);
            let log = c.b.log_softmax(x, 1);
            c.output(format!("logarithm {n}"), log);
            let logarithm = y.concat().iter().map(|p: &f64| p.ln()).collect();
            want.extend([(format!("softmax {n}"), y.concat()), (format!("logarithm {n}"), logarithm)]);
        }
        let want: Vec<(&str, &[f64])> = want.iter().map(|(n, w)| (n.as_str(), w.as_slice())).collect();
        c.expect(&BOTH, if dtype == DType::F16 { 2e-3 } else { 1e-5 }, &want);
    }
}

/// Logits whose differences are exact but whose sum with a logarithm would not be.
#[test]
fn s11_log_softmax_of_large_numbers() {
    let mut c = Case::new();
    let x = c.input(tensor(DType::F32, &[1, 3], &[-1e7, -1e7 + 1.0, -1e7 + 2.0]));
    let y = c.b.log_softmax(x, 1);
    c.output("short", y);
    let long: Vec<f64> = (0..300).map(|i| -1e7 + f64::from(i % 3)).collect();
    let x = c.input(tensor(DType::F32, &[1, 300], &long));
    let y = c.b.log_softmax(x, 1);
    c.output("long", y);
    let want = [-2.4076060, -1.4076060, -0.4076060];
    let long: Vec<f64> = (0..300).map(|i| want[i % 3] - 100f64.ln()).collect();
    c.expect(&BOTH, 1e-6, &[("short", &want), ("long", &long)]);
}
