"""The router that chooses a replica for each request."""

from __future__ import annotations

from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica


class ResidentRouter(RequestRouter):  # type: ignore[misc]
    """Sends a request to a replica where its model is resident.

    It relies on the replicas' reports (`ModelReplica.record_routing_stats`). As these come only now and then, it also
    remembers where it has sent requests to the model before. A request for a model that no replica has goes to the
    replica whose models take the fewest bytes.
    """

    def initialize_state(self, **_: Any) -> None:
        """Begins with no model sent anywhere."""
        self._sent: dict[str, ReplicaID] = {}

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Ranks replicas: first those that have the model, then the emptiest one, then the others."""
        model = pending_request.metadata.multiplexed_model_id if pending_request is not None else ""
        if not model or not candidate_replicas:
            return [candidate_replicas]
        holders = [replica for replica in candidate_replicas if self._has(replica, model)]
        others = [replica for replica in candidate_replicas if not self._has(replica, model)]
        sizes = _sizes(candidate_replicas)
        others.sort(key=lambda replica: self._taken(replica, sizes))
        if not holders:
            # Requests for the model that come before this one is answered follow it.
            self._sent[model] = others[0].replica_id
        return [rank for rank in (holders, others[:1], others[1:]) if rank]

    def on_request_routed(self, pending_request: PendingRequest, replica_id: ReplicaID, result: Any) -> None:
        """Remembers the replica that has the model from now on."""
        if model := pending_request.metadata.multiplexed_model_id:
            self._sent[model] = replica_id

    def _has(self, replica: RunningReplica, model: str) -> bool:
        return self._sent.get(model) == replica.replica_id or model in replica.routing_stats.get("resident", ())

    def _taken(self, replica: RunningReplica, sizes: dict[str, int]) -> float:
        """Returns the bytes of a replica's models, with those that are on their way there."""
        sent = {model for model, there in self._sent.items() if there == replica.replica_id}
        usual = sum(sizes.values()) / len(sizes) if sizes else 1
        return sum(sizes.get(model, usual) for model in sent | set(replica.routing_stats.get("resident", ())))


def _sizes(replicas: list[RunningReplica]) -> dict[str, int]:
    """Returns the bytes of the models, as far as a replica has reported them."""
    said = (replica.routing_stats.get("bytes", {}) for replica in replicas)
    return {model: size for sizes in said for model, size in sizes.items() if size > 0}
