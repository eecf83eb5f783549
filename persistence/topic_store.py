"""The topic files of a scope on disk. Today their index is read; what its lines mean is in `topics`."""

from persistence.files import read_text
from persistence.topics import TopicIndex, parse_topic_index
from persistence.workspace import ChannelId, Workspace


def read_topic_index(workspace: Workspace, channel: ChannelId | None) -> TopicIndex | None:
    """The index of the global topics (`channel` None) or of a channel's; None when there is none. Changes nothing.

    Entries whose file is gone are listed too: only a write tidies the index. Raises UnsafeObjectError, TooLargeError.
    """
    file = read_text(workspace.root, Workspace.topic_index(channel))
    return None if file is None else parse_topic_index(file.text)
