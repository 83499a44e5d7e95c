//! In: a graph with a loss; out: the same with the nodes of the backward pass behind it. Knows graphs alone: no fused
//! ops, no devices, no memory.
//!
//! [`gradients`] walks once from the loss back to the values that are asked for. Each node's rule, one of a table over
//! every op, gives its inputs their gradients as more nodes; what several readers contribute is summed. [`differentiate`]
//! does so for a graph's parameters and gives their gradients back as outputs. With a [`Checkpoint`] the backward pass
//! keeps fewer forward values and computes the others anew.
//!
//! The backward nodes of `blocks.0.sa.proj` are named `blocks.0.sa.proj.grad.dx` and so on, nodes that are computed anew
//! `blocks.0.sa.proj.again`.

mod checkpoint;
mod error;
mod rules;
mod saved;
mod sum;
mod walk;
mod writer;

pub use checkpoint::Checkpoint;
pub use error::GradError;
pub(crate) use error::to_loss;
pub(crate) use walk::{carries, gradients_since};

use crate::graph::{Disposition, Graph, NodeId, Op, Part, Storage, StorageId, ValueId};
use std::collections::BTreeMap;
use writer::Writer;

/// Which parameters get gradients.
#[derive(Clone, Copy, Debug)]
pub enum Parameters<'a> {
    /// All that the graph has nodes of.
    All,
    /// Those of these names.
    Named(&'a [&'a str]),
}

/// Appends the backward pass of `loss`, an f32 without dimensions, and returns the gradients of `wrt` in its order, each
/// of its value's type. What the loss does not depend on gets zeros.
///
/// ```
/// use kiln::grad::gradients;
/// use kiln::graph::{Builder, DType, TensorType};
/// let mut b = Builder::new();
/// let x = b.input("x", TensorType::new(DType::F32, [2, 3]))?;
/// let y = b.mul(x, x)?;
/// let loss = b.sum(y, &[0, 1])?;
/// b.output("loss", loss)?;
/// let mut graph = b.finish()?;
/// let dx = gradients(&mut graph, loss, &[x])?[0];
/// assert_eq!(graph.shape(dx).dims(), [2, 3]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// If the loss is not one f32, a value of `wrt` is no float, or a gradient reaches what has no rule.
pub fn gradients(graph: &mut Graph, loss: ValueId, wrt: &[ValueId]) -> Result<Vec<ValueId>, GradError> {
    gradients_checkpointed(graph, loss, wrt, Checkpoint::None)
}

/// [`gradients`], keeping only the forward values that a [`Checkpoint`] leaves. Numbers are the same, bit for bit where
/// a device computes a node alike each time.
///
/// # Errors
/// As [`gradients`], and if the graph has no blocks.
pub fn gradients_checkpointed(
    graph: &mut Graph,
    loss: ValueId,
    wrt: &[ValueId],
    checkpoint: Checkpoint,
) -> Result<Vec<ValueId>, GradError> {
    gradients_since(graph, loss, wrt, checkpoint, NodeId(0))
}

/// The graph with the backward pass of its output `loss`, and an output `grad.NAME` for each parameter, in the order of
/// their storages. A parameter that is packed with others has its own rows of their gradient.
///
/// # Errors
/// As [`gradients_checkpointed`], and if a name is not known or taken.
pub fn differentiate(
    graph: &Graph,
    loss: &str,
    parameters: Parameters,
    checkpoint: Checkpoint,
) -> Result<Graph, GradError> {
    graph.verify()?;
    let output = graph.outputs().iter().find(|o| o.name == loss).ok_or_else(|| GradError::Output {
        name: loss.to_owned(),
        known: graph.outputs().iter().map(|o| o.name.as_str()).collect::<Vec<_>>().join(", "),
    })?;
    let chosen = choose(graph, parameters)?;
    let wrt: Vec<ValueId> =
        graph.parameters().filter(|(id, _)| chosen.contains_key(id)).map(|(_, node)| node.into()).collect();
    let mut new = graph.clone();
    let gradients = gradients_checkpointed(&mut new, output.value, &wrt, checkpoint)?;
    let mut w = Writer::new(&mut new);
    for ((id, parts), gradient) in chosen.into_iter().zip(gradients) {
        let storage = graph.layout.get(id);
        for part in parts {
            let own = own_rows(&mut w, gradient, storage, part)?;
            w.graph.push_output(format!("grad.{}", part.name), own, Disposition::Read)?;
        }
    }
    new.verify()?;
    Ok(new)
}

/// The parameters whose gradients are asked for, by storage.
fn choose<'g>(graph: &'g Graph, parameters: Parameters) -> Result<BTreeMap<StorageId, Vec<&'g Part>>, GradError> {
    let parts = || graph.parameters().flat_map(|(id, _)| graph.layout.get(id).parts.iter().map(move |part| (id, part)));
    if let Parameters::Named(names) = parameters
        && let Some(name) = names.iter().find(|name| !parts().any(|(_, part)| part.name == **name))
    {
        let known = parts().map(|(_, part)| part.name.as_str()).collect::<Vec<_>>().join(", ");
        return Err(GradError::Parameter { name: (*name).to_owned(), known });
    }
    let mut chosen: BTreeMap<StorageId, Vec<&Part>> = BTreeMap::new();
    for (id, part) in parts() {
        let asked = match parameters {
            Parameters::All => graph.layout.get(id).dtype.is_float(),
            Parameters::Named(names) => names.contains(&part.name.as_str()),
        };
        if asked {
            chosen.entry(id).or_default().push(part);
        }
    }
    Ok(chosen)
}

/// A parameter's rows of its storage's gradient, in its own shape.
fn own_rows(w: &mut Writer, gradient: ValueId, storage: &Storage, part: &Part) -> writer::Value {
    if part.shape == storage.shape {
        return Ok(gradient);
    }
    w.name = format!("{}.grad", part.name);
    let row: usize = storage.shape.dims().iter().skip(1).product();
    let (start, len) = (part.offset / row.max(1), part.shape.elements() / row.max(1));
    let rows = w.push(Op::Slice { axis: 0, start, len }, &[gradient])?;
    w.reshape(rows, &part.shape)
}
