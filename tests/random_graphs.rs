//! In: random graphs; out: a failure where lifting or fusing changes a number on the reference. Ops are counted, so
//! that none is left out.

mod random;
mod written;

use kiln::fuse::{FuseLimits, fuse};
use kiln::graph::{Builder, Graph, GraphError, Op, Step, ValueId};
use kiln::lift::lift;
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use std::cell::RefCell;
use std::collections::BTreeMap;
use written::{f32, linear, same_numbers};

/// The same cases in every run.
fn runner(cases: u32) -> TestRunner {
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha))
}

fn failed(error: impl ToString) -> TestCaseError {
    TestCaseError::fail(error.to_string())
}

#[test]
fn fused_is_unfused_on_256_random_graphs_with_every_op() {
    let (written_ops, fused_ops) = (RefCell::new(BTreeMap::new()), RefCell::new(BTreeMap::new()));
    let result = runner(256).run(&random::plans(), |plan| {
        let graph = random::graph(&plan).map_err(failed)?;
        random::count(&graph, &mut written_ops.borrow_mut());
        for max_inputs in [7, 3] {
            let (fused, report) = fuse(&graph, &FuseLimits { max_inputs }).map_err(failed)?;
            random::count(&fused, &mut fused_ops.borrow_mut());
            same_numbers(&graph, &fused, 1, 0.0).map_err(|e| failed(format!("{e}\n{graph}\n{fused}\n{report}")))?;
            let (again, report) = fuse(&fused, &FuseLimits { max_inputs }).map_err(failed)?;
            prop_assert_eq!(&again, &fused, "a second time something is found:\n{}", report);
        }
        lift(&graph).map_err(failed)?;
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let (written_ops, fused_ops) = (written_ops.into_inner(), fused_ops.into_inner());
    for op in random::every_op() {
        assert!(written_ops.contains_key(&op), "no graph has {op}: {written_ops:?}");
    }
    for op in ["elementwise", "fused_matmul", "add_layernorm"] {
        assert!(fused_ops.contains_key(op), "no fused graph has {op}: {fused_ops:?}");
    }
}

#[test]
fn fused_gradients_are_unfused_on_256_random_graphs() {
    let (written_ops, fused_steps) = (RefCell::new(BTreeMap::new()), RefCell::new(BTreeMap::new()));
    let result = runner(256).run(&random::training_plans(), |plan| {
        let graph = random::graph(&plan).map_err(failed)?;
        let graph = random::training::with_gradients(&graph).map_err(|e| failed(format!("{e}\n{graph}")))?;
        graph.verify().map_err(failed)?;
        random::count(&graph, &mut written_ops.borrow_mut());
        for max_inputs in [7, 3] {
            let (fused, report) = fuse(&graph, &FuseLimits { max_inputs }).map_err(failed)?;
            count_comparisons(&fused, &mut fused_steps.borrow_mut());
            same_numbers(&graph, &fused, 1, 0.0).map_err(|e| failed(format!("{e}\n{graph}\n{fused}\n{report}")))?;
            let (again, report) = fuse(&fused, &FuseLimits { max_inputs }).map_err(failed)?;
            prop_assert_eq!(&again, &fused, "a second time something is found:\n{}", report);
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
    let (written_ops, fused_steps) = (written_ops.into_inner(), fused_steps.into_inner());
    let training = [
        "less",
        "less_equal",
        "equal",
        "normal_cdf",
        "dropout",
        "cross_entropy",
        "cross_entropy_grad",
        "softmax_grad",
        "log_softmax_grad",
        "layernorm_grad",
        "layernorm_param_grad",
        "rmsnorm_grad",
        "rmsnorm_param_grad",
        "embedding_grad",
        "linear_grad",
        "attention_grad",
    ];
    for op in random::every_op().into_iter().chain(training.map(str::to_owned)) {
        assert!(written_ops.contains_key(&op), "no graph has {op}: {written_ops:?}");
    }
    for op in ["elementwise", "fused_matmul"] {
        assert!(fused_steps.contains_key(op), "no {op} compares: {fused_steps:?}");
    }
}

/// How many fused ops of each name compare.
fn count_comparisons(graph: &Graph, counts: &mut BTreeMap<&'static str, usize>) {
    for (_, node) in graph.nodes() {
        let (Op::Elementwise(chain) | Op::FusedMatmul { epilogue: chain, .. }) = &node.op else { continue };
        if chain.steps.iter().any(|s| matches!(s, Step::Compare(..))) {
            *counts.entry(node.op.name()).or_insert(0) += 1;
        }
    }
}

/// Attention as models write it.
#[derive(Clone, Debug)]
struct Heads {
    heads: usize,
    size: usize,
    seq: usize,
    causal: bool,
    bias: bool,
    permuted_keys: bool,
    scale: Option<f32>,
    /// Concat in another order than the heads were made in.
    reversed: bool,
}

fn heads() -> impl Strategy<Value = Heads> {
    let sizes = (1..5usize, 1..6usize, 1..8usize);
    let scale = prop_oneof![Just(None), Just(Some(0.3f32)), Just(Some(-0.5))];
    (sizes, any::<[bool; 4]>(), scale).prop_map(
        |((heads, size, seq), [causal, bias, permuted_keys, reversed], scale)| Heads {
            heads,
            size,
            seq,
            causal,
            bias,
            permuted_keys,
            scale,
            reversed,
        },
    )
}

fn write(h: &Heads) -> std::result::Result<Graph, GraphError> {
    let mut b = Builder::new();
    let x = b.input("x", f32(&[2, h.seq, 5]))?;
    let mut parts = Vec::new();
    for i in 0..h.heads {
        let part = b.scope(&format!("heads.{i}"), |b| {
            let [q, k, v] = ["query", "key", "value"].map(|name| linear(b, name, x, h.size, h.bias));
            let (q, k, v): (ValueId, ValueId, ValueId) = (q?, k?, v?);
            let mut scores = if h.permuted_keys {
                let k = b.permute(k, &[0, 2, 1])?;
                b.matmul(q, k)?
            } else {
                b.matmul_transposed(q, false, k, true)?
            };
            if let Some(c) = h.scale {
                scores = b.scale(scores, c)?;
            }
            if h.causal {
                let mask = b.causal_mask(h.seq, h.seq)?;
                scores = b.masked_fill(scores, mask, f32::NEG_INFINITY)?;
            }
            let weights = b.softmax(scores, 2)?;
            b.matmul(weights, v)
        })?;
        parts.push(part);
    }
    if h.reversed {
        parts.reverse();
    }
    let joined = b.concat(&parts, 2)?;
    let y = linear(&mut b, "proj", joined, 5, true)?;
    let y = b.add(x, y)?;
    let y = written::layernorm(&mut b, "ln", y)?;
    b.output("y", y)?;
    b.finish()
}

#[test]
fn lifted_and_fused_heads_are_the_heads_as_written() {
    let result = runner(256).run(&heads(), |h| {
        let graph = write(&h).map_err(failed)?;
        let (lifted, _) = lift(&graph).map_err(failed)?;
        let (fused, report) = fuse(&lifted, &FuseLimits::default()).map_err(failed)?;
        let ops = written::ops(&fused);
        prop_assert_eq!((ops.get("attention"), ops.get("softmax"), ops.get("concat")), (Some(&1), None, None));
        let matmuls = ops.get("linear").copied().unwrap_or(0) + ops["fused_matmul"];
        prop_assert_eq!(matmuls, 2, "qkv and proj\n{}", fused);
        same_numbers(&graph, &fused, 1, 1e-12).map_err(|e| failed(format!("{e}\n{fused}\n{report}")))
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}
