//! Changes of an optimizer between its steps, for front ends whose users may change everything, such as Python's.

use std::collections::HashSet;
use std::sync::Arc;

use tenure_tensor::{Tensor, TensorError};

use super::{Group, GroupMember, Optimizer, Rate, Rule, Slots, Steps};
use crate::{Parameter, Result};

impl Group {
    /// Returns the parameters of the group.
    pub fn parameters(&self) -> impl ExactSizeIterator<Item = &Parameter> {
        self.members.iter().map(|member| &member.parameter)
    }

    /// Replaces the rule, for example by the same rule with other hyperparameters. Slots of the same names keep their
    /// values. If the new rule has others too, the next step makes all slots anew.
    pub fn set_rule(&mut self, rule: Arc<dyn Rule>) {
        for member in &mut self.members {
            let Slots::InMemory(slots) = &mut member.slots else { continue };
            if slots.is_empty() {
                continue;
            }
            let before = self.rule.slots(member.parameter.sizes());
            let after = rule.slots(member.parameter.sizes());
            if before.iter().map(|slot| slot.name).eq(after.iter().map(|slot| slot.name)) {
                // The names of all members' slots are the same then.
                break;
            }
            let kept = after.iter().map(|slot| before.iter().position(|other| other.name == slot.name));
            *slots = kept.map(|place| slots.get(place?).cloned()).collect::<Option<_>>().unwrap_or_default();
        }
        self.rule = rule;
    }

    /// Sets whether the parameters ascend their gradients: the rule gets the negated gradients.
    pub fn set_maximize(&mut self, maximize: bool) {
        self.maximize = maximize;
    }

    /// Replaces the parameter at `index`, for example after a move to another device. The state is kept.
    ///
    /// # Errors
    /// The group has no such parameter.
    pub fn set_parameter(&mut self, index: usize, parameter: Parameter) -> Result<()> {
        self.member(index)?;
        self.members[index].parameter = parameter;
        Ok(())
    }

    /// Returns the names of the slots of the parameter at `index`.
    ///
    /// # Errors
    /// The group has no such parameter.
    pub fn slot_names(&self, index: usize) -> Result<Vec<&'static str>> {
        let slots = self.rule.slots(self.member(index)?.parameter.sizes());
        Ok(slots.into_iter().map(|slot| slot.name).collect())
    }

    /// Returns the number of steps and the named slots of the parameter at `index`. The slots are the optimizer's own
    /// tensors, not copies, unless they are offloaded. There are none before the first step.
    ///
    /// # Errors
    /// The group has no such parameter; offloaded slots cannot be read back.
    pub fn state_of(&self, index: usize) -> Result<(u64, Vec<(&'static str, Tensor)>)> {
        let member = self.member(index)?;
        let names = self.slot_names(index)?;
        let count = match &member.slots {
            Slots::InMemory(slots) => slots.len(),
            Slots::Offloaded(_) => names.len(),
        };
        let slots = names.into_iter().take(count).enumerate().map(|(slot, name)| Ok((name, member.slot(slot)?)));
        Ok((member.steps.get(), slots.collect::<Result<_>>()?))
    }

    /// Sets the number of steps and the slots of the parameter at `index`, in the order of the rule. The values are
    /// copied to the parameter's device and dtype. Without values, the next step makes the slots.
    ///
    /// # Errors
    /// The group has no such parameter, or the rule another number of slots; a slot has other sizes; no memory.
    pub fn set_state_of(&mut self, index: usize, steps: u64, values: &[Tensor]) -> Result<()> {
        let member = self.member(index)?;
        let rule = &*self.rule;
        let count = self.slot_names(index)?.len();
        if !values.is_empty() && values.len() != count {
            let reason = format!("{} has {count} tensors of state for a parameter, got {}", rule.name(), values.len());
            return Err(TensorError::argument("Optimizer::set_state_of", reason).into());
        }
        let slots = if values.is_empty() { Vec::new() } else { member.make_slots(rule)? };
        for (slot, value) in slots.iter().zip(values) {
            if slot.sizes() != value.sizes() {
                let name = member.parameter.name();
                let expected = slot.sizes();
                let reason =
                    format!("the state of {name} has the sizes {:?}: {expected:?} are expected", value.sizes());
                return Err(TensorError::argument("Optimizer::set_state_of", reason).into());
            }
            slot.copy_(value)?;
        }
        let slots = member.slots_like(rule, slots)?;
        let member = &mut self.members[index];
        member.steps = Steps::new(steps);
        member.slots = slots;
        Ok(())
    }

    fn member(&self, index: usize) -> Result<&GroupMember> {
        self.members.get(index).ok_or_else(|| {
            let reason = format!("the group has {} parameters, and no parameter {index}", self.members.len());
            TensorError::argument("Optimizer", reason).into()
        })
    }
}

impl Optimizer {
    /// Adds a group of parameters. Parameters that are in a group already stay in it.
    pub fn add_group(&mut self, parameters: Vec<Parameter>, lr: f64, rule: Arc<dyn Rule>) {
        let mut ids: HashSet<usize> = self.parameters().map(|parameter| parameter.id()).collect();
        let added = parameters.into_iter().filter(|parameter| ids.insert(parameter.id()));
        let members = added
            .map(|parameter| GroupMember { parameter, steps: Steps::new(0), slots: Slots::InMemory(Vec::new()) })
            .collect();
        self.groups.push(Group { lr: Rate::new(lr), rule, maximize: false, members });
    }
}
