# The gateway: OpenAI's API before any server that completes text, without PyTorch.
#
# docker build --tag tide-gateway .
# docker run --publish 127.0.0.1:8000:8000 --env TIDE_SERVE_KEYS --env OPENAI_API_KEY tide-gateway \
#     --base-url http://HOST:8080 --model NAME
FROM python:3.11-slim-bookworm

WORKDIR /srv/tide
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY src ./src
RUN pip install --no-cache-dir --constraint constraints.txt '.[gateway]' \
    && rm -r src \
    && useradd --uid 10001 --create-home tide

USER 10001
# Everybody who reaches the container: needs TIDE_SERVE_KEYS.
ENV TIDE_SERVE_ENGINE=openai TIDE_SERVE_HOST=0.0.0.0
EXPOSE 8000
HEALTHCHECK --start-period=60s CMD ["python", "-c", \
    "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=5)"]
ENTRYPOINT ["tide", "serve"]
CMD ["--help"]
