//! Attention.

use crate::common::{BOTH, Case, EVERY, F16, F32, Result, f16, full, random, tensor};
use kiln::graph::{DType, GraphError, NodeId, ValueId};

#[derive(Clone, Copy)]
struct Form {
    batch: usize,
    heads: usize,
    size: usize,
    queries: usize,
    keys: usize,
    causal: bool,
}

const fn form(batch: usize, heads: usize, size: usize, queries: usize, keys: usize, causal: bool) -> Form {
    Form { batch, heads, size, queries, keys, causal }
}

/// Declares attention's output and log-sum-exp.
fn both(c: &mut Case, name: &str, out: std::result::Result<ValueId, GraphError>) {
    let node: NodeId = out.as_ref().unwrap_or_else(|e| panic!("{name}: {e}")).node;
    c.output(name, out);
    c.output(format!("{name}: log-sum-exp"), Ok(ValueId { node, output: 1 }));
}

fn attend(c: &mut Case, dtype: DType, f: Form, name: &str) {
    let width = f.heads * f.size;
    let q = c.input(random(dtype, &[f.batch, f.queries, width], 1));
    let k = c.input(random(dtype, &[f.batch, f.keys, width], 2));
    let v = c.input(random(dtype, &[f.batch, f.keys, width], 3));
    let out = c.b.attention(q, k, v, f.heads, 1.5, f.causal, None, None);
    both(c, name, out);
}

#[test]
fn head_sizes_and_lengths() {
    for (dtype, tolerance, forms) in [(DType::F32, F32, 5), (DType::F16, F16, 2)] {
        if dtype == DType::F16 && !f16() {
            continue;
        }
        let mut c = Case::new();
        let all = [
            form(2, 3, 8, 33, 33, true),
            form(1, 1, 5, 31, 33, false),
            form(1, 2, 8, 1, 257, true),
            form(1, 1, 5, 70, 70, false),
            form(1, 1, 64, 33, 40, false),
        ];
        for (i, f) in all.into_iter().enumerate().take(forms) {
            attend(&mut c, dtype, f, &i.to_string());
        }
        c.check(tolerance, &BOTH);
    }
}

#[test]
fn causal_is_aligned_at_the_bottom_right() {
    let mut c = Case::new();
    for (i, (queries, keys)) in [(1, 1), (2, 5), (5, 2), (40, 7), (7, 40), (64, 64), (1, 31)].into_iter().enumerate() {
        attend(&mut c, DType::F32, form(1, 2, 4, queries, keys, true), &i.to_string());
    }
    c.check(F32, &EVERY);
}

#[test]
fn masks_broadcast_and_hide() -> Result {
    let (inf, nan) = (f64::INFINITY, f64::NAN);
    let mut c = Case::new();
    let (b, h, sq, sk) = (2, 2, 5, 9);
    let [q, k] = [(sq, 1), (sk, 2)].map(|(s, seed)| c.input(random(DType::F32, &[b, s, h * 4], seed)));
    // a hidden key's value may hold anything
    let mut values = random(DType::F32, &[b, sk, h * 4], 3).to_f64();
    values[..h * 4].fill(nan);
    let v = c.input(tensor(DType::F32, &[b, sk, h * 4], &values));
    for (i, dims) in [&[sk][..], &[sq, sk], &[h, 1, sk], &[b, 1, sq, sk], &[b, h, sq, sk]].into_iter().enumerate() {
        let mut mask = random(DType::F32, dims, 4).to_f64();
        mask.iter_mut().step_by(sk).for_each(|m| *m = -inf); // key 0
        mask[1..sk].fill(-inf); // the first row sees none
        let m = c.input(tensor(DType::F32, dims, &mask));
        let out = c.b.attention(q, k, v, h, 0.5, i % 2 == 0, Some(m), None);
        both(&mut c, &i.to_string(), out);
    }
    c.check(F32, &BOTH);
    Ok(())
}

#[test]
fn lengths_hide_what_lies_past_them() {
    let mut c = Case::new();
    let capacity = 70;
    for (i, (queries, causal)) in [(1, true), (3, true), (70, true), (4, false)].into_iter().enumerate() {
        let q = c.input(random(DType::F32, &[4, queries, 8], 1));
        let lengths = [1.0, 0.0, 33.0, 70.0];
        let kv = |seed| {
            let mut values = random(DType::F32, &[4, capacity, 8], seed).to_f64();
            for (b, n) in lengths.iter().enumerate() {
                values[(b * capacity + *n as usize) * 8..(b + 1) * capacity * 8].fill(f64::NAN);
            }
            tensor(DType::F32, &[4, capacity, 8], &values)
        };
        let (k, v) = (c.input(kv(2)), c.input(kv(3)));
        let lengths = c.input(tensor(DType::I32, &[4], &lengths));
        let out = c.b.attention(q, k, v, 2, 0.7, causal, None, Some(lengths));
        both(&mut c, &i.to_string(), out);
    }
    c.check(F32, &BOTH);
}

#[test]
fn a_mask_and_lengths_together() {
    let mut c = Case::new();
    let [q, k, v] = [(3, 1), (6, 2), (6, 3)].map(|(s, seed)| c.input(random(DType::F32, &[2, s, 6], seed)));
    let mask = c.input(random(DType::F32, &[3, 6], 4));
    let lengths = c.input(tensor(DType::I32, &[2], &[5.0, 2.0]));
    let out = c.b.attention(q, k, v, 2, 1.0, true, Some(mask), Some(lengths));
    both(&mut c, "out", out);
    c.check(F32, &BOTH);
}

#[test]
fn operands_that_are_views() -> Result {
    for (dtype, tolerance, setups) in [(DType::F32, F32, &BOTH[..]), (DType::F16, F16, &BOTH[..1])] {
        if dtype == DType::F16 && !f16() {
            continue;
        }
        let mut c = Case::new();
        // q, k and v side by side, as one linear makes them
        let qkv = c.input(random(dtype, &[2, 9, 24], 1));
        let [q, k, v] = [0, 8, 16].map(|at| c.b.slice(qkv, 2, at, 8));
        let (q, k, v) = (q?, k?, v?);
        let out = c.b.attention(q, k, v, 2, 0.5, true, None, None);
        both(&mut c, "packed", out);
        let [q, k, v] = [1, 9, 15].map(|at| c.b.slice(qkv, 2, at, 7));
        let out = c.b.attention(q?, k?, v?, 1, 0.5, true, None, None);
        both(&mut c, "packed at odd offsets", out);
        let turned = c.b.permute(qkv, &[1, 0, 2])?; // (9, 2, 24)
        let [q, k, v] = [0, 8, 16].map(|at| c.b.slice(turned, 2, at, 8));
        let out = c.b.attention(q?, k?, v?, 2, 0.5, false, None, None);
        both(&mut c, "turned", out);
        let columns = c.b.permute(qkv, &[0, 2, 1])?; // (2, 24, 9): the width is strided
        let one = c.b.slice(columns, 1, 0, 5)?;
        let out = c.b.attention(one, columns, columns, 3, 0.5, false, None, None);
        both(&mut c, "strided", out);
        let row = c.input(random(dtype, &[8], 2));
        let stretched = c.b.broadcast(row, [2, 9, 8])?;
        let out = c.b.attention(stretched, stretched, stretched, 2, 0.5, false, None, None);
        both(&mut c, "stretched", out);
        c.check(tolerance, setups);
    }
    Ok(())
}

#[test]
fn without_queries_or_keys() {
    let mut c = Case::new();
    for (i, (queries, keys)) in [(3, 0), (0, 3)].into_iter().enumerate() {
        let [q, k, v] = [queries, keys, keys].map(|s| c.input(full(DType::F32, &[2, s, 4], 1.0)));
        let out = c.b.attention(q, k, v, 2, 1.0, true, None, None);
        both(&mut c, &i.to_string(), out);
    }
    c.check(F32, &BOTH);
}
