//! In: a forward graph and the groups of [`TrainOptions`]; out: [`Trained`], the storages that are trained and what holds
//! for which of their rows. Knows names and shapes; neither gradients nor optimisers.

use super::options::{Group, Names, Setting};
use super::{TrainError, TrainOptions};
use crate::grad::carries;
use crate::graph::{DType, Graph, Part, Storage, StorageId, ValueId};
use std::collections::BTreeSet;
use std::ops::Range;

/// A storage of which at least a part is trained.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Trained {
    pub storage: StorageId,
    /// Rows along dimension 0 for which the same holds, in order, without gaps; a single range is the whole storage.
    pub rows: Vec<(Range<usize>, Setting)>,
}

impl Trained {
    /// All that are trained, in the order of their storages: those that the loss is made of and no group freezes.
    ///
    /// # Errors
    /// If a group matches nothing, nothing is trained, or a trained parameter is not f32.
    pub fn all(graph: &Graph, loss: ValueId, options: &TrainOptions) -> Result<Vec<Trained>, TrainError> {
        check_groups(graph, options)?;
        let read = made_of(graph, loss);
        if read.is_empty() {
            return Err(TrainError::NoParameters);
        }
        let mut all = Vec::new();
        for id in &read {
            let storage = graph.layout.get(*id);
            let rows = rows(storage, options);
            if rows.iter().all(|(_, s)| s.frozen) {
                continue;
            }
            if storage.dtype != DType::F32 {
                return Err(TrainError::ParameterType { name: storage.name.clone(), got: storage.dtype });
            }
            all.push(Trained { storage: *id, rows });
        }
        if all.is_empty() {
            let parameters = read.iter().map(|id| graph.layout.get(*id).parts.len()).sum();
            return Err(TrainError::NothingTrained { parameters });
        }
        Ok(all)
    }
}

/// The options with what the loss of a graph as written is not made of frozen: it has no gradient, and stays as it is also
/// where lift packs it with what has one.
pub(crate) fn freeze_others(forward: &Graph, options: &TrainOptions) -> TrainOptions {
    let mut options = options.clone();
    let Some(loss) = forward.outputs().iter().find(|o| o.name == "loss") else { return options };
    let read = made_of(forward, loss.value);
    // by nodes: the layout of a graph that is lifted has storages beside those that they were packed in
    let others = forward.parameters().filter(|(id, _)| !read.contains(id));
    let others = others.flat_map(|(id, _)| &forward.layout.get(id).parts);
    let others: Vec<String> = others.map(|part| part.name.clone()).collect();
    if !others.is_empty() {
        options.groups.push(Group::frozen(Names::Exactly(others)));
    }
    options
}

/// The storages that a value is made of by way of values that have gradients, in order.
fn made_of(graph: &Graph, value: ValueId) -> BTreeSet<StorageId> {
    let mut live = vec![false; graph.nodes().len()];
    live[value.node.0] = true;
    for (id, node) in graph.nodes().rev() {
        if live[id.0] {
            node.inputs.iter().filter(|v| carries(graph.ty(**v))).for_each(|v| live[v.node.0] = true);
        }
    }
    graph.parameters().filter(|(_, node)| live[node.0]).map(|(storage, _)| storage).collect()
}

/// The settings of a storage's parts, neighbours of the same joined.
fn rows(storage: &Storage, options: &TrainOptions) -> Vec<(Range<usize>, Setting)> {
    let row = storage.shape.dims().iter().skip(1).product::<usize>();
    if row == 0 {
        let whole = |p: &Part| (0..storage.shape.dims()[0], options.setting(&p.name, &p.shape));
        return storage.parts.first().map(whole).into_iter().collect();
    }
    let mut rows: Vec<(Range<usize>, Setting)> = Vec::new();
    for part in &storage.parts {
        let setting = options.setting(&part.name, &part.shape);
        let (start, end) = (part.offset / row, (part.offset + part.shape.elements()) / row);
        match rows.last_mut() {
            Some((before, same)) if *same == setting => before.end = end,
            _ => rows.push((start..end, setting)),
        }
    }
    rows
}

/// Every name that a group spells out stands for a parameter, whether something reads it or not.
fn check_groups(graph: &Graph, options: &TrainOptions) -> Result<(), TrainError> {
    let parts = || graph.layout.parameters().map(|(part, _)| part);
    for group in &options.groups {
        let missing = match &group.names {
            Names::All | Names::Vectors => None,
            Names::Exactly(names) => names.iter().find(|n| !parts().any(|p| p.name == **n)).cloned(),
            names => (!parts().any(|p| names.has(&p.name, &p.shape))).then(|| names.to_string()),
        };
        if let Some(missing) = missing {
            let mut found: Vec<&str> = parts().map(|p| p.name.as_str()).collect();
            found.sort_unstable();
            // also where a storage that holds several has taken its own one's place
            found.dedup();
            let more = found.len().saturating_sub(SHOWN);
            found.truncate(SHOWN);
            let found = found.join(", ") + &if more > 0 { format!(" and {more} more") } else { String::new() };
            return Err(TrainError::Group { missing, found });
        }
    }
    Ok(())
}

/// Names that an error lists at most.
const SHOWN: usize = 20;
