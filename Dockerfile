# The gateway: OpenAI's API before any server that completes text, without PyTorch.
#
# docker build --tag tide-gateway .
# docker run --publish 127.0.0.1:8000:8000 --env TIDE_SERVE_KEYS --env OPENAI_API_KEY tide-gateway \
#     --base-url http://HOST:8080 --model NAME
#
# A server with a model in its process, linted and not built by the tests (for a GPU begin with an
# image that has CUDA; PIP_EXTRA_INDEX_URL may name an index with a smaller torch):
#
# docker build --build-arg EXTRA=server --build-arg MODELS=./models --build-arg ENGINE=transformers \
#     --tag tide .
# docker run --publish 127.0.0.1:8000:8000 --env-file serve.env tide
# A tag, so that a build has the latest updates of its system. .github/workflows/release.yml builds from
# the digest that the tag has then.
FROM python:3.11-slim-bookworm

ARG EXTRA=gateway
ARG MODELS=""
ARG ENGINE=openai
ARG PIP_EXTRA_INDEX_URL=""

WORKDIR /srv/tide
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
COPY models ./models
# hadolint ignore=SC2086
RUN pip install --no-cache-dir --constraint constraints.txt ".[${EXTRA}]" ${MODELS} \
    && rm -r src models \
    && useradd --uid 10001 --create-home tide

USER 10001
# Everybody who reaches the container: needs TIDE_SERVE_KEYS.
ENV TIDE_SERVE_ENGINE=${ENGINE} TIDE_SERVE_HOST=0.0.0.0
EXPOSE 8000
HEALTHCHECK --start-period=120s CMD ["python", "-c", \
    "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=5)"]
ENTRYPOINT ["tide", "serve"]
