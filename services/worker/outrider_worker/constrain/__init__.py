"""Answers that follow a grammar: JSON schema, regular expression, Lark; by llguidance."""

from outrider_worker.constrain.compiler import CompileLimits, GrammarCompiler
from outrider_worker.constrain.source import GrammarRefused
from outrider_worker.constrain.vocabulary import GrammarsUnavailable, Vocabulary

__all__ = [
    "CompileLimits",
    "GrammarCompiler",
    "GrammarRefused",
    "GrammarsUnavailable",
    "Vocabulary",
]
