//! In: tensors of the host, and outputs that a run kept; out: [`DeviceTensor`], a tensor that stays on the device and becomes
//! a state's value there.

use super::{Program, Session};
use crate::error::Error;
use crate::gpu::Resident;
use crate::graph::TensorType;
use crate::tensor::Tensor;

/// A tensor on a device, which no run changes: one that [`Session::upload`] brought there, or an output that a run kept.
/// Clones share it.
#[derive(Clone)]
pub struct DeviceTensor {
    resident: Resident,
    ty: TensorType,
}

impl DeviceTensor {
    pub(super) fn new(resident: Resident, ty: TensorType) -> DeviceTensor {
        DeviceTensor { resident, ty }
    }

    /// Its type.
    pub fn ty(&self) -> &TensorType {
        &self.ty
    }

    /// Copies it to the host once all that was submitted before is done, waiting on this thread.
    ///
    /// # Errors
    /// If the device fails.
    pub fn read(&self) -> Result<Tensor, Error> {
        Ok(Tensor::from_bytes(self.ty.clone(), self.resident.read()?))
    }
}

impl Session {
    /// Copies a tensor to the device, where it stays: [`Program::copy_state`] gives it to programs as often as one likes.
    ///
    /// # Errors
    /// If the device fails.
    pub fn upload(&self, tensor: &Tensor) -> Result<DeviceTensor, Error> {
        let resident = Resident::new(&self.gpu, "uploaded tensor", tensor.bytes())?;
        Ok(DeviceTensor::new(resident, tensor.ty().clone()))
    }
}

impl Program {
    /// Sets a state to a tensor that is on the device, ahead of the next run: as [`Program::write_state`], but nothing
    /// crosses to the device. A state that updates itself is an input that stays there; copied so, several take turns, and
    /// an output that one program kept becomes the input of another. A parameter of which a training in f16 keeps a
    /// copy goes through the host.
    ///
    /// # Errors
    /// If there is no such state, its type differs or the tensor is on another device; if the device fails.
    pub fn copy_state(&self, name: &str, from: &DeviceTensor) -> Result<(), Error> {
        let state = self.state_of(name, &from.ty)?;
        if !from.resident.is_on(self.executable.gpu()) {
            return Err(Error::OtherDevice { name: name.into() });
        }
        if self.copies(name).next().is_some() {
            return self.write_state(name, &from.read()?);
        }
        Ok(self.executable.copy(state.buffer, state.offset, &from.resident)?)
    }
}
