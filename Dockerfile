# The CIFAR-10 example as a ps, worker, chief or evaluator, as TF_CONFIG, the flags or the engine say.
#
#   docker build --tag=cifar10 .
#   docker run --volume="$PWD/shared:/shared" cifar10 --data_dir=/shared/cifar10 --output_dir=/shared/run1
#   tfdist render jobset --workers=4 --image=cifar10 examples/cifar10_main.py --data_dir=/shared/cifar10 …
#
# For GPUs: --build-arg=TENSORFLOW='tensorflow[and-cuda]'. A ps gets no GPU from `tfdist render`.
FROM python:3.13-slim-bookworm

ARG TENSORFLOW=tensorflow
WORKDIR /opt/tfdist
COPY pyproject.toml README.md LICENSE ./
COPY constraints constraints
COPY tfdist tfdist
RUN pip install --no-cache-dir --constraint=constraints/tf-2.21.txt . "$TENSORFLOW"
COPY estimators estimators
COPY examples examples

USER 65534:65534
ENV HOME=/tmp PYTHONUNBUFFERED=1
ENTRYPOINT ["python", "examples/cifar10_main.py"]
