//! In: parameters' names and shapes; out: [`ParamLayout`], which storage holds which parameter where. Knows neither
//! files nor devices.

use super::{DType, Shape};
use std::fmt;

/// Index of a storage in its [`ParamLayout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StorageId(pub usize);

/// A parameter's place in its storage: whole rows of the storage along dimension 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The parameter's own name, as in a checkpoint.
    pub name: String,
    /// Its own shape.
    pub shape: Shape,
    /// First element in the storage.
    pub offset: usize,
}

/// A dense tensor that holds one parameter, or several stacked along dimension 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Storage {
    /// The parameter's name, or a name for the packed whole.
    pub name: String,
    /// Element type.
    pub dtype: DType,
    /// Shape of the whole.
    pub shape: Shape,
    /// The parameters in it, in order, without gaps.
    pub parts: Vec<Part>,
    /// The storage of which this is a copy in another type; see [`ParamLayout::copy`].
    pub copy_of: Option<StorageId>,
}

/// All storages of a graph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParamLayout {
    storages: Vec<Storage>,
}

impl ParamLayout {
    /// Adds a storage for one parameter.
    pub fn add(&mut self, name: &str, dtype: DType, shape: Shape) -> StorageId {
        let part = Part { name: name.to_owned(), shape: shape.clone(), offset: 0 };
        self.push(Storage { name: name.to_owned(), dtype, shape, parts: vec![part], copy_of: None })
    }

    /// Adds a storage.
    pub fn push(&mut self, storage: Storage) -> StorageId {
        self.storages.push(storage);
        StorageId(self.storages.len() - 1)
    }

    /// Adds a storage that stacks others along dimension 0. The caller has checked that the other sizes agree.
    pub fn pack(&mut self, name: &str, members: &[StorageId]) -> StorageId {
        let (mut parts, mut rows, mut offset) = (Vec::new(), 0, 0);
        for &id in members {
            let member = &self.storages[id.0];
            parts.extend(member.parts.iter().map(|p| Part { offset: offset + p.offset, ..p.clone() }));
            rows += member.shape.dims()[0];
            offset += member.shape.elements();
        }
        let first = &self.storages[members[0].0];
        let mut dims = first.shape.dims().to_vec();
        dims[0] = rows;
        let storage = Storage { name: name.to_owned(), dtype: first.dtype, shape: dims.into(), parts, copy_of: None };
        self.push(storage)
    }

    /// Adds a storage that stacks others of one shape along a new dimension 0. The caller has checked the shapes.
    pub fn stack(&mut self, name: &str, members: &[StorageId]) -> StorageId {
        let packed = self.pack(name, members);
        let dims = [&[members.len()], self.storages[members[0].0].shape.dims()].concat();
        self.storages[packed.0].shape = dims.into();
        packed
    }

    /// Adds a storage that is a copy of another in another type, under that one's name and the type's. It is filled
    /// from the same parameters, and whatever sets the one's value sets its own.
    pub fn copy(&mut self, id: StorageId, dtype: DType) -> StorageId {
        let of = self.get(id).clone();
        self.push(Storage { name: format!("{}.{dtype}", of.name), dtype, copy_of: Some(id), ..of })
    }

    /// A storage by its index.
    pub fn get(&self, id: StorageId) -> &Storage {
        &self.storages[id.0]
    }

    /// Every parameter and its type in the order of the storages, copies in other types apart. One that is packed comes
    /// with its own storage too.
    pub fn parameters(&self) -> impl Iterator<Item = (&Part, DType)> {
        let own = self.storages.iter().filter(|s| s.copy_of.is_none());
        own.flat_map(|s| s.parts.iter().map(|part| (part, s.dtype)))
    }

    /// All storages in order of their index, also those that no node reads any more.
    pub fn iter(&self) -> impl Iterator<Item = (StorageId, &Storage)> {
        self.storages.iter().enumerate().map(|(i, s)| (StorageId(i), s))
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.name, self.dtype, self.shape)?;
        if self.parts.len() > 1 {
            write!(f, " packs {} parameters", self.parts.len())?;
        }
        Ok(())
    }
}
