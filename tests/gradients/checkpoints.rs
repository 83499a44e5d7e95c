//! Checkpoints: the same gradients from fewer values that are alive at a time, fused too.

use crate::parameters::with_loss;
use crate::written::{self, Result, TINY, f32, gptlite, linear};
use kiln::caps::DeviceCaps;
use kiln::fuse::{FuseLimits, fuse};
use kiln::grad::{Checkpoint, Parameters, differentiate};
use kiln::graph::{Builder, DType, Graph, Op, TensorType, ValueId};
use kiln::lift::lift;
use kiln::model::{Dnn, DnnConfig};
use kiln::reference::evaluate;
use kiln::select::TensorKind;
use kiln::session::{CompileOptions, Compiled, compile};
use std::collections::BTreeMap;

fn all(graph: &Graph, checkpoint: Checkpoint) -> Result<Graph> {
    Ok(differentiate(graph, "loss", Parameters::All, checkpoint)?)
}

fn fused(graph: &Graph) -> Result<Graph> {
    Ok(fuse(graph, &FuseLimits::default())?.0)
}

/// The value whose memory a value is in: ops that only move elements are views.
fn root(graph: &Graph, value: ValueId) -> ValueId {
    let node = graph.producer(value);
    match node.op {
        Op::Reshape(_) | Op::Permute(_) | Op::Slice { .. } | Op::Broadcast(_) | Op::Recompute(_) => {
            root(graph, node.inputs[0])
        }
        _ => value,
    }
}

/// The most bytes of values that are alive at once, sources and outputs apart.
fn peak(graph: &Graph) -> usize {
    let mut last_read = BTreeMap::new();
    for (id, node) in graph.nodes() {
        last_read.extend(node.inputs.iter().map(|v| (root(graph, *v), id)));
    }
    for output in graph.outputs() {
        last_read.remove(&root(graph, output.value));
    }
    let (mut alive, mut most) = (0, 0);
    let mut ends: BTreeMap<_, usize> = BTreeMap::new();
    for (id, node) in graph.nodes() {
        for (output, ty) in node.outputs.iter().enumerate() {
            let value = ValueId { node: id, output };
            if let Some(last) = last_read.get(&value).filter(|_| !node.op.is_source()) {
                alive += ty.bytes();
                *ends.entry(*last).or_default() += ty.bytes();
            }
        }
        most = most.max(alive);
        alive -= ends.remove(&id).unwrap_or(0);
    }
    most
}

/// A network of numbered blocks, each with dropout, behind an embedding and a residual.
fn dropout_blocks(blocks: usize) -> Result<Graph> {
    let mut b = Builder::new();
    let tokens = b.input("tokens", TensorType::new(DType::I32, [2, 5]))?;
    let counter = b.input("counter", TensorType::new(DType::U32, [3]))?;
    let table = b.parameter("table", f32(&[5, 6]))?;
    let mut x = b.embedding(table, tokens)?;
    for i in 0..blocks {
        x = b.scope(&format!("blocks.{i}"), |b| -> Result<ValueId> {
            let h = written::layernorm(b, "ln", x)?;
            let h = linear(b, "up", h, 24, true)?;
            let h = b.gelu_erf(h)?;
            let h = b.dropout(h, 0.3, i as u32, counter)?;
            let h = linear(b, "down", h, 6, false)?;
            Ok(b.add(x, h)?)
        })?;
    }
    b.output("x", x)?;
    Ok(b.finish()?)
}

fn networks() -> Result<Vec<(&'static str, Graph)>> {
    let deep = Dnn::new(DnnConfig { in_size: 3, width: 5, depth: 9, out_size: 2 }).build(7)?;
    let gpt = gptlite(written::Sizes { blocks: 5, ..TINY })?;
    let mut all = Vec::new();
    for (name, graph) in [("dnn", deep), ("gptlite", gpt), ("dropout", dropout_blocks(4)?)] {
        let graph = with_loss(&graph)?;
        all.push((name, lift(&graph)?.0));
        all.push((name, graph));
    }
    Ok(all)
}

#[test]
fn numbers_are_the_same_bit_for_bit() -> Result {
    for (name, graph) in networks()? {
        let (params, inputs) = written::values(&graph, 3);
        // a lifted graph's storages are random as a whole: each parameter is named
        let params = written::own_parameters(&graph, params);
        let expected = evaluate(&all(&graph, Checkpoint::None)?, &params, &inputs)?;
        for checkpoint in [1, 2, 3, 100].map(Checkpoint::Every).into_iter().chain([Checkpoint::Norms]) {
            let checkpointed = all(&graph, checkpoint)?;
            for graph in [&checkpointed, &fused(&checkpointed)?] {
                assert_eq!(evaluate(graph, &params, &inputs)?, expected, "{name}, {checkpoint:?}\n{graph}");
            }
        }
    }
    Ok(())
}

/// The blocks of which something is computed anew.
fn again(graph: &Graph) -> Vec<usize> {
    let number = |name: &str| name.strip_suffix(".again")?.split('.').nth(1)?.parse().ok();
    let computed = |op: &Op| !matches!(op, Op::Recompute(_));
    let mut blocks: Vec<usize> =
        graph.nodes().filter(|(_, n)| computed(&n.op)).filter_map(|(_, n)| number(&n.name)).collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

#[test]
fn segments_are_blocks_and_the_last_is_kept() -> Result {
    let graph = lift(&with_loss(&gptlite(written::Sizes { blocks: 5, ..TINY })?)?)?.0;
    let of = |every| Ok::<_, Box<dyn std::error::Error>>(again(&fused(&all(&graph, Checkpoint::Every(every))?)?));
    assert_eq!(of(1)?, [0, 1, 2, 3]);
    assert_eq!(of(2)?, [0, 1, 2, 3]);
    assert_eq!(of(3)?, [0, 1, 2]);
    assert_eq!(of(5)?, [0; 0]);
    assert_eq!(all(&graph, Checkpoint::Every(9))?, all(&graph, Checkpoint::None)?);
    // a linear and its activation are one layer of a DNN; what leaves a segment, as activation 3, is kept
    let dnn = with_loss(&Dnn::new(DnnConfig { in_size: 3, width: 5, depth: 6, out_size: 2 }).build(7)?)?;
    assert_eq!(again(&all(&dnn, Checkpoint::Every(2))?), [0, 1, 4, 5]);
    Ok(())
}

#[test]
fn norms_alone_are_computed_anew_from_the_rows_that_they_norm() -> Result {
    let graph = lift(&with_loss(&gptlite(written::Sizes { blocks: 3, ..TINY })?)?)?.0;
    let (kept, anew) = (fused(&all(&graph, Checkpoint::None)?)?, fused(&all(&graph, Checkpoint::Norms)?)?);
    let again = |n: &kiln::graph::Node| n.name.ends_with(".again") && !matches!(n.op, Op::Recompute(_));
    let norms: Vec<_> = anew.nodes().filter(|(_, n)| again(n)).collect();
    assert_eq!(norms.len(), 7);
    for (_, node) in norms {
        assert!(matches!(node.op, Op::LayerNorm(_)), "{}", node.name);
        assert!(matches!(anew.producer(node.inputs[0]).op, Op::Recompute(_)), "{}", node.name);
    }
    assert!(peak(&anew) < peak(&kept), "{} of {}", peak(&anew), peak(&kept));
    // a network without norms keeps all
    let dnn = with_loss(&Dnn::new(DnnConfig { in_size: 3, width: 5, depth: 6, out_size: 2 }).build(7)?)?;
    assert_eq!(all(&dnn, Checkpoint::Norms)?, all(&dnn, Checkpoint::None)?);
    Ok(())
}

#[test]
fn fewer_values_are_alive_after_fusion_too() -> Result {
    let deep = with_loss(&Dnn::new(DnnConfig { in_size: 8, width: 8, depth: 26, out_size: 8 }).build(64)?)?;
    let gpt = with_loss(&gptlite(written::Sizes { blocks: 9, batch: 4, seq: 16, ..TINY })?)?;
    for (graph, every) in [(deep, 5), (lift(&gpt)?.0, 3)] {
        let kept = fused(&all(&graph, Checkpoint::None)?)?;
        let checkpointed = fused(&all(&graph, Checkpoint::Every(every))?)?;
        let (most, least) = (peak(&kept), peak(&checkpointed));
        assert!(least * 2 < most, "{least} of {most} bytes\n{checkpointed}");
        let recomputed = checkpointed.nodes().filter(|(_, n)| matches!(n.op, Op::Recompute(_))).count();
        assert!(recomputed > 0);
    }
    Ok(())
}

#[test]
fn fewer_tensors_are_alive_on_a_device() -> Result {
    let graph = with_loss(&Dnn::new(DnnConfig { in_size: 16, width: 16, depth: 26, out_size: 16 }).build(512)?)?;
    let planned = |checkpoint| -> Result<u64> {
        let graph = all(&graph, checkpoint)?;
        let Compiled { selected, plan, .. } = compile(&graph, &DeviceCaps::PORTABLE, &CompileOptions::default())?;
        let temps: Vec<_> =
            selected.tensors.iter().zip(&plan.lifetimes).filter(|(t, _)| t.kind == TensorKind::Temp).collect();
        let alive = |at: usize| {
            let then = temps.iter().filter(|(_, life)| life.is_some_and(|l| (l.first..=l.last).contains(&at)));
            then.map(|(tensor, _)| tensor.bytes).sum()
        };
        Ok((0..selected.steps.len()).map(alive).max().unwrap_or(0))
    };
    let (most, least) = (planned(Checkpoint::None)?, planned(Checkpoint::Every(5))?);
    assert!(least * 2 < most, "{least} of {most} bytes");
    Ok(())
}

#[test]
fn what_crosses_a_border_is_kept_and_read_behind_a_recompute() -> Result {
    let graph = lift(&with_loss(&gptlite(written::Sizes { blocks: 3, ..TINY })?)?)?.0;
    let graph = all(&graph, Checkpoint::Every(1))?;
    let (params, _) = written::values(&graph, 1);
    assert!(!params.is_empty());
    for (_, node) in graph.nodes().filter(|(_, n)| matches!(n.op, Op::Recompute(_))) {
        let kept = graph.producer(node.inputs[0]);
        // the sum of the embeddings, or of a block
        assert!(kept.name == "add" || kept.name.ends_with(".add"), "{}", kept.name);
        assert_eq!(node.name, format!("{}.again", kept.name));
    }
    Ok(())
}

#[test]
fn what_cannot_be_checkpointed_is_refused() -> Result {
    let graph = with_loss(&dropout_blocks(1)?)?;
    let error = |graph: &Graph, every| {
        differentiate(graph, "loss", Parameters::All, Checkpoint::Every(every)).unwrap_err().to_string()
    };
    assert_eq!(error(&graph, 0), "a checkpoint every 0 blocks: expected at least 1, or no checkpoints");
    let mut b = Builder::new();
    let x = b.input("x", f32(&[2, 3]))?;
    let y = linear(&mut b, "head", x, 5, true)?;
    b.output("y", y)?;
    let graph = with_loss(&b.finish()?)?;
    assert_eq!(
        error(&graph, 1),
        "no node is named \"blocks.N…\" or \"layers.N…\", so there is nothing to put checkpoints between; name a scope \
         so, or use no checkpoints"
    );
    Ok(())
}
