"""optuna in SQLite and in its journal, TensorBoard's event files; a study goes on after a kill."""
import glob, os, sys, optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

optuna.logging.set_verbosity(optuna.logging.ERROR)
STEPS = int(sys.argv[1])


def main():
    for name, storage in (("sql", "sqlite:///study.db"), ("journal", JournalStorage(JournalFileBackend("journal.log")))):
        study = optuna.create_study(study_name=name, storage=storage, load_if_exists=True, sampler=optuna.samplers.GridSampler({"x": list(range(STEPS))}))
        print("begins", file=sys.stderr, flush=True)
        # (A trial that was under way when the job was killed stays unfinished: its value is tried again.)
        done = {t.params.get("x") for t in study.get_trials(states=[optuna.trial.TrialState.COMPLETE])}
        for x in range(STEPS):
            if x not in done:
                study.enqueue_trial({"x": x})
                study.optimize(lambda trial: (trial.suggest_int("x", 0, STEPS) - 3.5) ** 2, n_trials=1)
        values = sorted(set(t.value for t in study.get_trials(states=[optuna.trial.TrialState.COMPLETE])))
        print(name, study.best_value, values)
    writer = EventFileWriter("events")
    for step in range(STEPS):
        writer.add_event(Event(step=step, wall_time=1.5e9 + step))
        writer.flush()
    writer.close()
    newest = max(glob.glob("events/*"), key=os.path.getmtime)
    print("events", sum(1 for _ in EventFileLoader(newest).Load()))
    print("## end", flush=True)


main()
