# One image for every service, the certificates and the demo: docker-compose.yml says which command each runs.
FROM python:3.12-slim

RUN useradd --uid 10001 --create-home --home-dir /home/psf psf \
    && mkdir -p /var/lib/psf /run/psf /tls /code \
    && chown psf:psf /var/lib/psf /run/psf /tls

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY psframework ./psframework
COPY services ./services
RUN pip install --no-cache-dir .

ENV PYTHONUNBUFFERED=1 \
    PYTHONPATH=/code \
    PSF_SHM_DIR=/run/psf
WORKDIR /home/psf
USER psf
CMD ["psf", "--help"]
