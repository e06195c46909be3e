# Each target does its own set-up: a fresh clone, Python 3.11 and a network are enough.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# The modules that setup.py compiles: a compiled module hides its source, so a changed source means a new build.
TYPES := $(shell find streamlog -name "*.pxd")
HOT := $(TYPES) $(TYPES:.pxd=.py)
# One more than the cores: many tests wait for processes and for time.
WORKERS ?= $(shell echo $$(($$(getconf _NPROCESSORS_ONLN) + 1)))

COMMA := ,

# Tests start a thousand processes; without bytecode each of them would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help bench-instructions demo demo-connect demo-spark spark questions test test-changed quick lint lint-ruff lint-types lint-contracts shape architecture bench simulate simulate-coverage chaos alerts procedures mirror-shapes soak attack properties fuzz equality equality-live oracle oracle-kafka oracle-avro oracle-connect oracle-connect-avro oracle-connect-rest oracle-connect-storage oracle-connect-values oracle-mirror-to-kafka oracle-debezium conformance conformance-cluster conformance-kafka registry-kills chaos-mirror chaos-mirror-faults chaos-mirror-app chaos-connect chaos-connect-service bench-connect bench-connect-service bench-registry bench-snapshots bench-connect-memory bench-mirror bench-compare bench-page bench-growth bench-kafka compile clean test-opensearch mutants tutorial figures docs docs-build lint-docs pictures gallery wheels wheels-check release

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 20

# One installation for each set: an editable one compiles the hot modules, and two would do it twice.
# pip would compile bytecode on one core; files for another Python, which do not compile, are left out.
define install
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "streamlog needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Name another one: make PYTHON=python3.11 ...")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -qq --disable-pip-version-check --upgrade pip
	$(BIN)/python -m pip install -qq --disable-pip-version-check --no-compile --editable '.$(1)'
	$(BIN)/python -W ignore -m compileall -qq -j 0 $$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))') || true
endef

$(VENV)/.examples: pyproject.toml setup.py $(HOT)
	$(call install,[examples])
	@touch $@

$(VENV)/.shop: pyproject.toml setup.py $(HOT)
	$(call install,[shop])
	@touch $@

$(VENV)/.spark: pyproject.toml setup.py $(HOT)
	$(call install,[examples$(COMMA)spark])
	@touch $@

$(VENV)/.docs: pyproject.toml setup.py $(HOT)
	$(call install,[docs])
	@touch $@

# It holds the other sets, too.
$(VENV)/.dev: pyproject.toml setup.py $(HOT)
	$(call install,[dev$(COMMA)examples$(COMMA)shop$(COMMA)spark])
	@touch $(VENV)/.examples $(VENV)/.shop $(VENV)/.spark $@

demo: $(VENV)/.examples ## the flights of 2013 through an embedded log (CHAOS=1: with three SIGKILLs on the way, PROCESSES=n: with n workers)
	@$(BIN)/python -m examples.flights $(if $(CHAOS),--chaos) $(if $(PROCESSES),--workers $(PROCESSES))

demo-spark: $(VENV)/.spark ## the flights of 2013 as a history in Spark, held against the data frame (ENGINE=local: without a JVM; LIMIT=n); brings Java along, as a wheel
	@$(BIN)/python -m examples.flights.history --engine $(or $(ENGINE),spark) $(if $(LIMIT),--limit $(LIMIT))

demo-connect: $(VENV)/.shop ## a shop: nginx's access log and a table of PostgreSQL, joined, to Parquet files and to SQL, held against both servers (CHAOS=1: with three SIGKILLs and a crash of PostgreSQL); needs both servers
	@$(BIN)/python -m examples.shop $(if $(CHAOS),--chaos) $(if $(SECONDS),--seconds $(SECONDS))

questions: $(VENV)/.examples ## five more questions about the flights, one for each kind of window and join, held against data frames (the first 30,000; LIMIT=400000 for the year)
	@$(BIN)/python -m examples.flights.questions --limit $(or $(LIMIT),30000)

test: $(VENV)/.dev ## every test that needs nothing but this machine
	$(BIN)/python -m pytest -n $(WORKERS) $(ARGS)

quick: $(VENV)/.dev ## lint, types, and the tests of the pure rooms, in less than a minute
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	STREAMLOG_PROFILE=quick $(BIN)/python -m pytest -n $(WORKERS) -m 'not slow' $(ARGS) $$($(BIN)/python -m tools.pure_tests)

test-changed: $(VENV)/.dev ## the tests of the rooms that a change touches (BASE=commit to compare with; ARGS=--list prints them)
	@$(BIN)/python -m tools.test_changed $(if $(BASE),--base $(BASE)) -n $(WORKERS) $(ARGS)

lint: $(VENV)/.dev ## ruff, mypy --strict, import contracts, side by side
	@$(MAKE) --no-print-directory --jobs --output-sync=target lint-ruff lint-types lint-contracts

lint-ruff: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

lint-types: $(VENV)/.dev
	$(BIN)/mypy

lint-contracts: $(VENV)/.dev
	$(BIN)/lint-imports --config pyproject.toml --no-cache

shape: $(VENV)/.dev ## the figures of the tree with their goals: modules, names used twice, circles, comments, Any (ARGS='-v FIGURE' lists what counts)
	@$(BIN)/python -m tools.shape $(ARGS)

mutants: $(VENV)/.dev ## the pure modules of Connect, changed in one place at a time: their tests must catch 95 % of SAMPLE=400 changes (ARGS="streamlog/connect/sink.py --sample 0": all of one file)
	@$(BIN)/python -m tools.mutants $(if $(SAMPLE),--sample $(SAMPLE)) $(ARGS)

architecture: $(VENV)/.dev ## the generated parts of docs/architecture.md: its rooms, and five journeys from traces
	$(BIN)/python -m tools.journeys --write

docs: $(VENV)/.docs ## the documentation as a site with search, at http://localhost:8000, until Ctrl-C
	@$(BIN)/python -m tools.site
	@$(BIN)/zensical serve

docs-build: $(VENV)/.docs ## the documentation as files in build/site: fails on a broken link, and on anything that comes from elsewhere
	@$(BIN)/python -m tools.site
	@$(BIN)/zensical build --strict --clean
	@$(BIN)/python -m tools.site check

# Vale as a Go program, as its makers publish it; or the one of this machine.
VALE ?= $(or $(shell command -v vale),build/bin/vale)
build/bin/vale:
	GOBIN=$(CURDIR)/build/bin go install github.com/vale-cli/vale/v3/cmd/vale@v3.21.0

lint-docs: $(VENV)/.docs $(VALE) ## style and spelling of the documentation: vale with the rules in tools/prose, after Google's guide, and codespell; needs Go, or vale on the PATH
	$(VALE) README.md CONTRIBUTING.md SECURITY.md docs changelog.d
	$(BIN)/codespell

pictures: $(VENV)/.dev ## the console as pictures in docs/images, by Chromium; needs Debian's package chromium
	@$(BIN)/python -m tools.pictures

gallery: $(VENV)/.dev ## all pages of the console in build/pictures, light and dark, wide and narrow; needs chromium and playwright
	@$(BIN)/python -m tests.console.pictures $(ARGS)

casts: $(VENV)/.dev ## recordings of terminals as animated SVG in docs/images, and for asciinema in build/casts (ARGS="hello top" for some)
	@$(BIN)/python -m pip install -qq --disable-pip-version-check pyte==0.8.2
	@$(BIN)/python -m tools.casts $(ARGS)

figures: $(VENV)/.dev ## the figures of the documentation that code draws, as SVG in docs/images
	@$(BIN)/python -m tools.figures

tutorial: $(VENV)/.dev ## the commands of docs/tutorial.md as they stand there, in one shell, with the output held against the page's (some minutes)
	STREAMLOG_PROFILE=thorough $(BIN)/python -m pytest -n 0 -q tests/docs/test_tutorial.py $(ARGS)

bench: $(VENV)/.dev ## produce, consume, windowed count, the engine against its peers, commits, Avro by registry and by hand, latency, two workers, Nexmark beside the peers, memory, state, Spark: tables, and JSON in benchmarks/results
	@$(BIN)/python -m benchmarks $(ARGS)

simulate: $(VENV)/.dev ## the shipped code on a simulated network, disk and clock, SEEDS=100 lives of each level (LEVELS="..."; SEED=n lives one again); JSON in build/simulation.json
	@mkdir -p build
	@$(BIN)/python -m simulation $(LEVELS) $(if $(SEED),--seed $(SEED),--seeds $(or $(SEEDS),100)) --report build/simulation.json $(ARGS)

simulate-coverage: $(VENV)/.dev ## which lines of the state machines simulated lives run, 90 % of them at least
	@$(BIN)/python -m simulation.coverage $(ARGS)

chaos: $(VENV)/.dev ## three brokers as processes under load, and what goes wrong with processes, disks, clocks and networks (KINDS="kill pause", COUNT=n of each, LIMIT=seconds of each, BUDGET=nightly, SEED=n); JSON in build/chaos.json
	@mkdir -p build
	@$(BIN)/python -m chaos $(KINDS) $(if $(COUNT),--count $(COUNT)) $(if $(LIMIT),--limit $(LIMIT)) $(if $(BUDGET),--budget $(BUDGET)) $(if $(SEED),--seed $(SEED)) --report build/chaos.json $(ARGS)

alerts: $(VENV)/.dev ## a real Prometheus scrapes three brokers and an app, and each alert is provoked by its fault; minutes; needs Debian's package prometheus
	STREAMLOG_PROFILE=thorough $(BIN)/python -m pytest -n 0 tests/generate $(ARGS)

procedures: $(VENV)/.dev ## the commands of docs/operations.md as they stand there, under a load: disks replaced, rolling restart, one broker to three, moves, draining (ARGS="replace-disks grow" for some, ARGS=--quick)
	@$(BIN)/python -m chaos.procedures $(ARGS)

mirror-shapes: $(VENV)/.dev ## the commands of docs/two-data-centres.md as they stand there, under a load: hub and spoke, active-active, a planned move, a lost source, an app that moves and one that is lost (ARGS="source-lost" for some)
	@$(BIN)/python -m chaos.shapes $(ARGS)

attack: $(VENV)/.dev ## hostile clients on the loopback: descriptors, half-open connections, slowloris, garbage, bombs, names, terminals, timing, memory before login (ATTACKS="names timing", SIZE=n times the tests' size); JSON in build/attack.json
	@mkdir -p build
	@$(BIN)/python -m tests.attack $(ATTACKS) $(if $(SIZE),--size $(SIZE)) --report build/attack.json $(ARGS)

soak: $(VENV)/.dev ## three brokers that live through HOURS=2 of trouble, and must not grow by it; JSON in build/soak.json
	@mkdir -p build
	@$(BIN)/python -m chaos.soak $(if $(HOURS),--hours $(HOURS)) --report build/soak.json $(ARGS)

properties: $(VENV)/.dev ## the property tests with ten times the examples, and 100,000 frames of garbage (SEED=n to repeat one run)
	STREAMLOG_PROFILE=thorough $(BIN)/python -m pytest -n $(WORKERS) --timeout 1200 -m 'not spark' $(if $(SEED),--hypothesis-seed=$(SEED)) $(ARGS)

fuzz: $(VENV)/.dev ## ten million spoilt requests, responses and record batches: read, or refused with an error of ours, and soon (INPUTS=n, SEED=n)
	@mkdir -p build
	@$(BIN)/python -m tests.fuzz --inputs $(or $(INPUTS),10000000) $(if $(SEED),--seed $(SEED)) --report build/fuzz.json $(ARGS)

equality: $(VENV)/.dev ## 500 random programs: the test driver, one worker, and three that are killed, paused, joined and left, write the same (ARGS='--seed n --runs 1' repeats one)
	@$(BIN)/python -m tests.equality $(ARGS)

equality-live: $(VENV)/.dev ## 200 random programs whose three workers are fed while they run: each output has what `explain` promises of it (ARGS='--seed n --runs 1', --spark: in Spark's histories, too; --tasks: without processes)
	@$(BIN)/python -m tests.equality --live --runs 200 $(ARGS)

oracle: $(VENV)/.dev ## 2,000 random histories per kind of operator: the engine against its definition, written as loops over the whole input (EXAMPLES=n, ARGS='-k session')
	STREAMLOG_ORACLE=$(or $(EXAMPLES),2000) $(BIN)/python -m pytest -n $(WORKERS) -q tests/oracle $(ARGS)

oracle-kafka: $(VENV)/.dev ## random histories over all operators on Kafka Streams' own test driver and on ours; each difference with the paragraph that owns it (CASES=100 of each kind, SEED=n, ARGS='--kind "table join left"'); needs Maven and a JDK
	@mkdir -p build
	@$(BIN)/python -m tests.oracle.kafka --cases $(or $(CASES),100) $(if $(SEED),--seed $(SEED)) --report build/oracle-kafka.json $(ARGS)

oracle-avro: $(VENV)/.dev ## random pairs of Avro schemas on Apache Avro's own parser and SchemaCompatibility and on ours: texts, refusals, kinds, paths and details; each difference with its reason (PAIRS=20000, SEED=n); needs Maven and a JDK
	@mkdir -p build
	@$(BIN)/python -m tests.oracle.avro --pairs $(or $(PAIRS),20000) $(if $(SEED),--seed $(SEED)) --report build/oracle-avro.json $(ARGS)

oracle-connect: $(VENV)/.dev ## random records through Kafka Connect's own transforms, predicates and JsonConverter, Debezium's ExtractNewRecordState, and ours; each difference with its reason (RECORDS=2000 of each class, SEED=n); needs Maven and a JDK
	@mkdir -p build
	@$(BIN)/python -m tests.oracle.connect --records $(or $(RECORDS),2000) $(if $(SEED),--seed $(SEED)) --report build/oracle-connect.json $(ARGS)

oracle-connect-avro: $(VENV)/.dev ## random rows and Avro schemas through Apicurio's port of Confluent's AvroData and through AvroConverter, both ways; each difference with its reason (QUESTIONS=5000, SEED=n); needs Maven and a JDK
	@mkdir -p build
	@$(BIN)/python -m tests.oracle.connect_avro --questions $(or $(QUESTIONS),5000) $(if $(SEED),--seed $(SEED)) --report build/oracle-connect-avro.json $(ARGS)

oracle-connect-rest: $(VENV)/.dev ## some 190 requests to Apache's own Connect worker and to ours, both on a broker of ours; statuses and bodies field by field, each difference with its reason (ARGS=--all prints all); needs Maven and a JDK
	@mkdir -p build
	@$(BIN)/python -m tests.oracle.connect_rest --report build/oracle-connect-rest.json $(ARGS)

oracle-connect-storage: $(VENV)/.dev ## Connect's three topics, written and read by Apache's stores and by ours: random histories (HISTORIES=12, SEED=n), and a group that goes from our workers to Apache's and back; needs Maven and a JDK
	@mkdir -p build
	@$(BIN)/python -m tests.oracle.connect_storage --histories $(or $(HISTORIES),12) $(if $(SEED),--seed $(SEED)) --report build/oracle-connect-storage.json $(ARGS)

oracle-connect-values: $(VENV)/.dev ## random JSON through Kafka Connect's JsonConverter, StringConverter, SimpleHeaderConverter and Cast, and ours; each difference with its reason (QUESTIONS=20000, SEED=n); needs Maven and a JDK
	@mkdir -p build
	@$(BIN)/python -m tests.oracle.connect_values --questions $(or $(QUESTIONS),20000) $(if $(SEED),--seed $(SEED)) --report build/oracle-connect-values.json $(ARGS)

oracle-mirror: $(VENV)/.dev ## random histories of topics, transactions and groups at Apache Kafka that brokers of ours mirror, both sides killed on the way: librdkafka reads each side alike, `verify` finds no difference, and the promoted topics go on (HISTORIES=3, ACTS=100, SEED=n; ARGS="--source ours --brokers 3": clusters of three on both sides); needs Maven and a JDK
	@$(BIN)/python -m tests.oracle.mirror --histories $(or $(HISTORIES),3) --acts $(or $(ACTS),100) $(if $(SEED),--seed $(SEED)) $(ARGS)

oracle-mirror-to-kafka: $(VENV)/.dev ## random histories from a broker of ours to a real Apache Kafka, by our mirror, whose worker is killed KILLS=5 times and whose target STRIKES=3 times, and by MirrorMaker 2: records in order, and positions as Kafka's RemoteClusterUtils translates them (HISTORIES=1, SEED=n); needs Maven and a JDK
	@$(BIN)/python -m tests.oracle.mirror_to_kafka --histories $(or $(HISTORIES),1) --kills $(or $(KILLS),5) --strikes $(or $(STRIKES),3) $(if $(SEED),--seed $(SEED))

oracle-debezium: $(VENV)/.dev ## random changes of tables of a real PostgreSQL through Debezium's engine and through PostgresCdc by the name of its class, event by event (STATEMENTS=2000, SEED=n); needs Maven, a JDK and Debian's postgresql
	@$(BIN)/python -m tests.oracle.debezium --statements $(or $(STATEMENTS),2000) $(if $(SEED),--seed $(SEED))

spark: $(VENV)/.dev ## histories in Spark at length: 200 random programs with tasks killed at random, and on a standalone cluster of this machine
	STREAMLOG_PROFILE=thorough $(BIN)/python -m pytest -q tests/spark_bridge tests/docs/test_spark.py --timeout 1200 $(ARGS)

conformance: $(VENV)/.dev ## clients of others through all features, and suites of others, on our broker; writes docs/compatibility.md
	@$(BIN)/python -m conformance $(ARGS)
	@$(if $(ARGS),,$(BIN)/python -m conformance.suites)

conformance-cluster: $(VENV)/.dev ## the same clients on three brokers of ours, one of which is restarted every 10 s
	@$(BIN)/python -m conformance --only three $(ARGS)

registry-kills: $(VENV)/.dev ## the primary of the schema registry is killed KILLS=200 times under registrations (checker: ids, lost schemas), then Confluent's client on three brokers of which one is restarted every 10 s
	@$(BIN)/python -m chaos.registry_kills --kills $(or $(KILLS),200)
	@$(BIN)/python -m chaos.registry_kills --kills 12 --restart-every 10

chaos-mirror: $(VENV)/.dev ## two brokers as processes that mirror each other: the source, the target or the operator's command is killed before, during or after each request of a promotion without loss and of the fail back, ROUNDS=200 times under a producer and a group; and the target or the command at each step of the promotion of an app whose source is lost, APPS=24 times (SEED=n); JSON in build/chaos-mirror.json and build/chaos-mirror-apps.json
	@$(BIN)/python -m chaos.mirror_kills --rounds $(or $(ROUNDS),200) $(if $(SEED),--seed $(SEED)) --report build/chaos-mirror.json
	@$(BIN)/python -m chaos.app_kills --rounds $(or $(APPS),24) $(if $(SEED),--seed $(SEED)) --report build/chaos-mirror-apps.json

chaos-mirror-faults: $(VENV)/.dev ## two brokers as processes that mirror each other under a producer and a group: the link is cut, a cluster is lost, the clocks are apart, ROUNDS=20 times each (KINDS="link-cut lost-cluster clocks-apart", SEED=n); JSON in build/chaos-mirror-faults.json
	@$(BIN)/python -m chaos.mirror_faults $(KINDS) --rounds $(or $(ROUNDS),20) $(if $(SEED),--seed $(SEED)) --report build/chaos-mirror-faults.json

chaos-mirror-app: $(VENV)/.dev ## an app with windows and joins moves to another cluster, PLANNED=5 times without loss while its feed writes, and ROUNDS=20 times because its source is killed; its rows are compared with those that its input demands, computed without the engine (SEED=n; SOURCE=kafka: from a real Apache Kafka, by Maven and a JDK; BROKERS=3: between clusters of three, whose brokers are killed meanwhile; ARGS=--without-cut: by plain --now, which has to fail); JSON in build/chaos-mirror-app.json
	@$(BIN)/python -m chaos.app_failover --planned $(or $(PLANNED),5) --rounds $(or $(ROUNDS),20) $(if $(SEED),--seed $(SEED)) $(if $(SOURCE),--source $(SOURCE)) $(if $(BROKERS),--brokers $(BROKERS)) --report build/chaos-mirror-app.json $(ARGS)

chaos-connect: $(VENV)/.dev ## sources and sinks of an app: for every connector that promises exactly once, the worker is killed LIVES=10 times at each step of commits and flushes, and workers join, leave and are suspended beyond their session; disks that are full or fail, directories that refuse, clocks that jump; rows of the log and of the target are compared as multisets; kills by connector and step in build/chaos-connect.jsonl
	@mkdir -p build && rm -f build/chaos-connect.jsonl
	@STREAMLOG_PROFILE=thorough STREAMLOG_CONNECT_LIVES=$(or $(LIVES),10) STREAMLOG_CONNECT_REPORT=build/chaos-connect.jsonl $(BIN)/python -m pytest tests/worker/connect/test_connector_kills.py tests/worker/connect/test_connect_kills.py tests/worker/connect/test_machine_faults.py -n 1 -q --timeout 7200

chaos-connect-service: $(VENV)/.dev ## three worker processes of one Connect service, killed, suspended beyond their session, restarted in turn and reconfigured, ROUNDS=12 times for each of two seeds: files to the log, to a table and to files, compared as multisets
	@STREAMLOG_PROFILE=thorough STREAMLOG_CONNECT_ROUNDS=$(or $(ROUNDS),12) $(BIN)/python -m pytest tests/connect_service/test_worker_kills.py -n 1 -q --timeout 3600

bench-connect-service: $(VENV)/.dev ## a Connect service with CONNECTORS=100 idle connectors: start, memory, CPU, changes of one of them, and one of three workers killed; changes of one of TASKS=1000 tasks; exit code 1 if a bar is missed
	@$(BIN)/python -m benchmarks.connect_service --connectors $(or $(CONNECTORS),100) --tasks $(or $(TASKS),1000)

bench-registry: $(VENV)/.dev ## the schema registry with 10,000 subjects of 5 versions: start, look-ups by id, memory
	@$(BIN)/python -m benchmarks.schema_registry

bench-connect: $(VENV)/.dev ## connectors beside their peers: kcat, rsyslog, Quix Streams, Bytewax, COPY by hand, psycopg, pg_recvlogical, Debezium, pyarrow, Starlette; RUNS=5, RECORDS=200000; CONNECT_ROWS=tail,cdc runs some rows
	@$(BIN)/python -m benchmarks --only connect --runs $(or $(RUNS),5) --records $(or $(RECORDS),200000)

bench-connect-memory: $(VENV)/.dev ## how much a worker grows by a file and a transaction of PostgreSQL of 1 GiB, a log that takes nothing for a while, and a slow target; ARGS="transaction --bytes 100000000" runs one row with other sizes; exit code 1 if a bar is missed
	@$(BIN)/python -m benchmarks.connect_memory $(ARGS)

bench-mirror: $(VENV)/.dev ## mirrors, those to Kafka as well, beside librdkafka's consumer and MirrorMaker 2 (Maven), the lag at 1,000 records a second, and memory with 1,000 topics and with large records; RUNS=5, RECORDS=2000000
	@$(BIN)/python -m benchmarks --only mirroring mirror_memory --runs $(or $(RUNS),5) --records $(or $(RECORDS),2000000)

bench-kafka: $(VENV)/.dev ## the broker beside Apache Kafka, and the engine beside Kafka Streams (Maven, a JDK), in a warm JVM, by turns, RUNS=5: big and single writes, 16 KB fetches, 1,000 messages a second through to a consumer with and without syncs, Java's own performance test; filter, windows, and join, exactly once; RECORDS=2000000, WARM=10000000
	@RUNS=$(or $(RUNS),5) WARM=$(or $(WARM),10000000) $(BIN)/python -m benchmarks --only beside_kafka beside_kafka_streams --records $(or $(RECORDS),2000000)

bench-compare: $(VENV)/.dev ## the newest results in benchmarks/results beside the last ones of this machine in benchmarks/history.jsonl; fails if a row is worse (ARGS=--record writes this release's line)
	@$(BIN)/python -m benchmarks.compared $(ARGS)

bench-page: $(VENV)/.dev ## the tables of docs/benchmarks.md, from the newest line of benchmarks/history.jsonl
	@$(BIN)/python -m benchmarks.page

bench-growth: $(VENV)/.dev ## what a unit of work costs by partitions, topics, connections, record sizes, members, GiB of history, and keys: curves in docs/images, with their bends; RUNS=3; ARGS="keys sizes --most 100000" measures some
	@$(BIN)/python -m benchmarks.growth --runs $(or $(RUNS),3) $(ARGS)

bench-snapshots: $(VENV)/.dev ## snapshots of state in moto's S3 on this machine: the restore of KEYS=10000000 keys with them and from the changelog alone, and what they cost J2
	@KEYS=$(or $(KEYS),10000000) $(BIN)/python -m benchmarks.snapshots

test-opensearch: $(VENV)/.dev ## the connector Search beside a real OpenSearch in a JVM, from Maven (Java 17): its suite, errors, a kill, and the double of the default tests held against it
	@STREAMLOG_PROFILE=thorough $(BIN)/python -m pytest tests/connectors/search -q --timeout 600

conformance-kafka: $(VENV)/.dev ## the same features on Apache Kafka itself, each request with its nullable fields null, empty and set beside ours, our client's tests, apps whose workers are killed, and Spark
	@$(BIN)/python -m conformance --only kafka $(ARGS)
	@$(BIN)/python -m conformance.kafka $(BIN)/python -m conformance.nullable
	@$(BIN)/python -m conformance.kafka $(BIN)/python -m pytest -q -p no:cacheprovider --timeout 1200 tests/client tests/worker/test_brokers.py tests/spark_bridge/test_kafka.py -k kafka

compile: $(VENV)/.dev ## the hot modules as C extensions, in place
	$(BIN)/python setup.py --quiet build_ext --inplace
	@$(BIN)/streamlog doctor

$(VENV)-release/.ready: pyproject.toml
	$(PYTHON) -m venv $(VENV)-release
	$(VENV)-release/bin/python -m pip install -qq --disable-pip-version-check --upgrade pip
	$(VENV)-release/bin/python -m pip install -qq --disable-pip-version-check --group release
	@touch $@

bench-instructions: compile ## instructions of hot paths, for each row or request; fails if one takes 5 % more than in benchmarks/history.jsonl (ARGS=--record writes this release's line), or in a checkout (ARGS="--beside ../before"); needs valgrind
	@$(BIN)/python -m benchmarks.hot_paths $(ARGS)

wheels: $(VENV)-release/.ready ## dist/: an sdist, a wheel for each CPython from 3.11 to 3.14 that is here, or that uv can get, and a pure one
	@$(VENV)-release/bin/python -m tools.wheels $(ARGS)

wheels-check: $(VENV)-release/.ready ## the wheels in dist/, in fresh environments, by pip and by uv, without a compiler: hello, the test driver, doctor
	@$(VENV)-release/bin/python -m tools.wheels_check $(ARGS)

release: $(VENV)-release/.ready $(VENV)/.dev ## a dry run: the next version, its changelog, distributions, SBOM, licences and checks in build/release; prints what a release would push, and pushes nothing
	@$(VENV)-release/bin/python -m tools.release --tests-with $(BIN)/python $(ARGS)

clean: ## what the other targets made
	rm -rf $(VENV) $(VENV)-release build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find streamlog -name '*.so' -delete -o -name '*.c' -delete
