"""How far a token must go for each question. What is not in the table cannot be asked."""

from __future__ import annotations

from encamp.door import questions
from encamp.door.peer import Peer
from encamp.model.errors import Code, EncampError
from encamp.model.token import Scope

NEEDED: dict[type, Scope] = {
    questions.AskStatus: Scope.READ,
    questions.AskHosts: Scope.READ,
    questions.AskMachines: Scope.READ,
    questions.AskEvents: Scope.READ,
    questions.AskCommands: Scope.READ,
    questions.FollowCommands: Scope.READ,
    questions.AskTriggers: Scope.READ,
    questions.AskTriggerLog: Scope.READ,
    questions.AskRequests: Scope.READ,
    questions.FollowRequest: Scope.READ,
    questions.AskWhy: Scope.READ,
    questions.AskEnvironments: Scope.READ,
    questions.AskBatchJobs: Scope.READ,
    questions.AskProperties: Scope.USE,
    questions.IssueCommand: Scope.USE,
    questions.CancelCommand: Scope.USE,
    questions.Submit: Scope.USE,
    questions.EndRequest: Scope.USE,
    questions.AskTicket: Scope.USE,
    questions.MoveMachine: Scope.USE,
    # A token that could make others would outlive its own end.
    questions.AskTokens: Scope.ADMINISTER,
    questions.CreateToken: Scope.ADMINISTER,
    questions.RevokeToken: Scope.ADMINISTER,
    questions.ReloadTriggers: Scope.ADMINISTER,
    questions.ForgetHost: Scope.ADMINISTER,
    questions.GoOn: Scope.ADMINISTER,
    questions.AskMembers: Scope.ADMINISTER,
    questions.ChangeMembers: Scope.ADMINISTER,
    questions.AskRecording: Scope.ADMINISTER,
    questions.AskAudit: Scope.ADMINISTER,
}


def check_scope(peer: Peer, question: questions.Question) -> None:
    if peer.scope is None:
        return
    needed = NEEDED[type(question)]
    if not peer.scope.includes(needed):
        raise EncampError(
            Code.NOT_PERMITTED,
            f"This token is for '{peer.scope.value}', and this needs '{needed.value}'.",
            "Ask for another one: 'encamp token create'.",
        )
