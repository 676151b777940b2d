//! Which line of a stack is the user's: the innermost of the user's own Python files, or of a package that is not torch.

use crate::snapshot::{Frame, FrameId, Snapshot, StackId, Texts};

/// Who a contributor is put down to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Owner {
    /// A line of the user's, as `file:line:function`, by the frame's number.
    Line(FrameId),
    /// There is a stack, and no line of it is the user's.
    NoUserFrame,
    /// It is from before the recording, without a stack.
    Preexisting,
    /// It is from within the recording, without a stack.
    NoStack,
}

/// The user's lines of all stacks, found once for each frame and once for each stack.
#[derive(Clone, Debug)]
pub struct UserLines<'a> {
    snapshot: &'a Snapshot,
    frames: Vec<bool>,
}

impl<'a> UserLines<'a> {
    /// Looks at every frame of a snapshot.
    pub fn of(snapshot: &'a Snapshot) -> UserLines<'a> {
        let is_user = |frame: &Frame| is_user(frame, &snapshot.texts);
        UserLines { snapshot, frames: snapshot.stacks.all_frames().iter().map(is_user).collect() }
    }

    /// The user's line of a stack.
    pub fn line(&self, stack: StackId) -> Option<FrameId> {
        let of_user = |frame: &FrameId| self.frames.get(frame.index()).copied().unwrap_or(false);
        self.snapshot.stacks.ids(stack).iter().copied().find(of_user)
    }

    /// The user's line as text.
    pub fn text(&self, stack: StackId) -> Option<String> {
        self.line(stack).map(|line| self.place(line))
    }

    /// A frame as text.
    pub fn place(&self, frame: FrameId) -> String {
        self.snapshot.stacks.frame(frame).place(&self.snapshot.texts)
    }

    /// Whom a block is put down to, by its stack and whether an event of the recording handed it out.
    pub fn owner(&self, stack: StackId, recorded: bool) -> Owner {
        match self.line(stack) {
            Some(line) => Owner::Line(line),
            None if stack != StackId::NONE => Owner::NoUserFrame,
            None if recorded => Owner::NoStack,
            None => Owner::Preexisting,
        }
    }

    /// An owner in words.
    pub fn name(&self, owner: Owner) -> String {
        match owner {
            Owner::Line(line) => self.place(line),
            Owner::NoUserFrame => "<no user frame>".to_owned(),
            Owner::Preexisting => "<preexisting>".to_owned(),
            Owner::NoStack => "<no stack>".to_owned(),
        }
    }
}

/// A Python file that is not torch's, not the standard library's and not generated.
fn is_user(frame: &Frame, texts: &Texts) -> bool {
    let Some(file) = frame.file else { return false };
    let path = texts.text(file).replace('\\', "/");
    let has = |part: &str| path.contains(part);
    let in_packages = has("-packages/");
    let standard = (has("/lib/python") || has("/lib64/python") || has("/Lib/")) && !in_packages;
    path.ends_with(".py")
        && !has("-packages/torch/")
        && !standard
        && !path.starts_with('<')
        && !has("/tmp/torchinductor")
}
