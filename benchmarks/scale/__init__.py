"""Scale: how many consumers and jobs a second one primary carries, from costs that the other scenarios measured."""
