"""A folder of TensorBoard's event files, written with its own writer; torch is not needed."""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Events:
    """The event file of one folder, which is made with the first event."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: Any = None

    def scalars(self, row: Mapping[str, float], step: int) -> None:
        """One point each."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in row.items()]
        self._add(Summary(value=values), step)

    def image(self, name: str, png: bytes, step: int) -> None:
        """A PNG."""
        from tensorboard.compat.proto.summary_pb2 import Summary

        width, height = struct.unpack(">II", png[16:24])
        image = Summary.Image(height=height, width=width, colorspace=4, encoded_image_string=png)
        self._add(Summary(value=[Summary.Value(tag=name, image=image)]), step)

    def text(self, name: str, markdown: str, step: int = 0) -> None:
        """Markdown."""
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.compat.proto.tensor_pb2 import TensorProto
        from tensorboard.plugins.text.metadata import create_summary_metadata

        tensor = TensorProto(dtype="DT_STRING", string_val=[markdown.encode()])
        tensor.tensor_shape.dim.add(size=1)
        metadata = create_summary_metadata(name, "")
        self._add(Summary(value=[Summary.Value(tag=name, metadata=metadata, tensor=tensor)]), step)

    def hyperparameters(self, values: Mapping[str, Any], trial: str, at: float) -> None:
        """Settings of the run, for the HParams dashboard."""
        from tensorboard.plugins.hparams.summary_v2 import hparams_pb

        self._add(hparams_pb(dict(values), trial_id=trial, start_time_secs=at), 0)

    def end_of_session(self, finished: bool, at: float) -> None:
        """How it ended, for the HParams dashboard."""
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.plugins.hparams import metadata
        from tensorboard.plugins.hparams.api_pb2 import Status
        from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData, SessionEndInfo

        # tensorboard's own helper for this one wants tensorflow (2.21)
        status = Status.STATUS_SUCCESS if finished else Status.STATUS_FAILURE
        data = HParamsPluginData(session_end_info=SessionEndInfo(status=status, end_time_secs=at))
        value = Summary.Value(
            tag=metadata.SESSION_END_INFO_TAG,
            metadata=metadata.create_summary_metadata(data),
            tensor=metadata.NULL_TENSOR,
        )
        self._add(Summary(value=[value]), 0)

    def flush(self) -> None:
        """Have the disk take everything. Raises OSError for a full one."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """Flush and close."""
        if self._writer is not None:
            self._writer.close()

    def _add(self, summary: Any, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        if self._writer is None:
            self._writer = EventFileWriter(str(self._folder))
        self._writer.add_event(Event(wall_time=time.time(), step=step, summary=summary))
