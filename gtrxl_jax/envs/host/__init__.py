"""Environments that step on the host: simulators with the interface of gymnasium.

    stream = HostStream((HostEnv("gymnasium:CartPole-v1"),), num_envs=8)
    with stream.open(seed=0) as envs:
        arrival = envs.reset()
        arrival = envs.step(action)

| module | has |
|---|---|
| `simulators` | one environment, by name, with wrappers and spaces of arrays |
| `pools` | those of envpool, which steps many in threads of its own |
| `dmlab`, `dmlab30` | levels of DeepMind Lab; those of DMLab-30, and returns in them |
| `memory_maze`, `dm_env` | the mazes of memory-maze; tasks of dm_env |
| `two_colors`, `wads` | Two-Colors in Doom; the files of its maps |
| `texts` | texts as rows of hashed words |
| `wrappers` | the wrappers that a config can name |
| `stream` | a batch of them as a stream of time steps, as `envs.stream` is of jitted ones |
"""
