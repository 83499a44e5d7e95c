//! In: a graph; out: the same without nodes that no output and no update reads. Knows nothing of what ops mean.

use super::{Graph, GraphError, Op, Rewriter};

/// Drops nodes that nothing reads, and says how many. Inputs and states stay: they are what a run is given.
pub fn dead_code(graph: &Graph) -> Result<(Graph, usize), GraphError> {
    let mut live = vec![false; graph.nodes().len()];
    let ends = graph.outputs().iter().map(|o| o.value).chain(graph.updates().iter().map(|u| u.1));
    for value in ends {
        live[value.node.0] = true;
    }
    for (id, node) in graph.nodes().rev() {
        live[id.0] |= node.op == Op::Input || graph.is_state(id);
        if live[id.0] {
            node.inputs.iter().for_each(|v| live[v.node.0] = true);
        }
    }
    let mut r = Rewriter::new(graph);
    for (id, _) in graph.nodes().filter(|(id, _)| live[id.0]) {
        r.copy(id)?;
    }
    Ok((r.finish()?, live.iter().filter(|l| !**l).count()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Builder, DType, TensorType};

    #[test]
    fn what_nothing_reads_is_dropped_but_inputs_and_updates_stay() -> Result<(), GraphError> {
        let ty = || TensorType::new(DType::F32, [2]);
        let mut b = Builder::new();
        let x = b.input("x", ty())?;
        b.input("unused", ty())?;
        let w = b.parameter("w", ty())?;
        b.add(x, w)?;
        let state = b.state("state", ty())?;
        let next = b.scale(state, 2.0)?;
        b.update(state, next)?;
        let y = b.relu(x)?;
        b.output("y", y)?;
        let (graph, dropped) = dead_code(&b.finish()?)?;
        graph.verify()?;
        assert_eq!(dropped, 2);
        assert_eq!(
            graph.to_string(),
            "%0 = input [] : f32 (2)  # x\n\
             %1 = input [] : f32 (2)  # unused\n\
             %2 = input [] : f32 (2)  # state\n\
             %3 = scale(2) [%2] : f32 (2)  # scale\n\
             %4 = relu [%0] : f32 (2)  # relu\n\
             update state = %3\n\
             output y = %4\n"
        );
        Ok(())
    }
}
