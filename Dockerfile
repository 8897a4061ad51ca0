# To learn:  docker build -t inside-out . && docker run --rm -it -p 8888:8888 -v inside-out:/course/workspace inside-out
# To grade:  docker build -t inside-out-grader --target grader . && docker run --rm --network none --memory 8g \
#                --pids-limit 512 -v "$PWD/handed_in:/handed_in:ro" inside-out-grader --json /handed_in/01.ipynb
FROM python:3.12-slim-bookworm AS course
RUN apt-get update && apt-get install -y --no-install-recommends cmake g++ make && rm -rf /var/lib/apt/lists/*
RUN useradd --create-home reader
WORKDIR /course
COPY . .
# A torch without CUDA. For one with it:  --build-arg PIP_EXTRA_INDEX_URL=
ARG PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir -c constraints.txt -e '.[deploy,kernels,logging]'

FROM course AS grader
RUN rm -r solutions
USER reader
ENTRYPOINT ["course", "check"]

FROM course AS reader
RUN mkdir workspace && chown reader workspace
USER reader
EXPOSE 8888
CMD ["course", "lab", "--no-browser", "--ip", "0.0.0.0", "--port", "8888"]
