"""Herding: what a group of workers decides about its connectors, as pure machines.

`Herder` takes records, rounds, requests and events, and says what to do. Around it: the records of
Kafka Connect's topics (`configs`, `statuses`), the tasks of one worker, and who reads which part.
"""
