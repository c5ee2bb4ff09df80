{{- /* Arguments of the container without extraArgs. Every option here exists in `flash-indexer serve --help`. */ -}}
{{- define "flash-indexer.args" -}}
{{- $v := .Values -}}
- serve
- --host=0.0.0.0
- --port={{ $v.http.port }}
- --log-format={{ $v.logFormat }}
{{- if $v.grpc.enabled }}
- --grpc-port={{ $v.grpc.port }}
{{- end }}
{{- if $v.engines.blockSize }}
- --block-size={{ int64 $v.engines.blockSize }}
{{- end }}
- {{ printf "--model-name=%s" $v.engines.modelName | quote }}
- {{ printf "--tenant-id=%s" $v.engines.tenantId | quote }}
{{- with $v.engines.networks }}
- --engine-networks={{ join "," . }}
{{- end }}
{{- with $v.discovery.kubernetes.selector }}
- {{ printf "--discovery-kubernetes=%s" . | quote }}
{{- with $v.discovery.kubernetes.namespace }}
- {{ printf "--discovery-kubernetes-namespace=%s" . | quote }}
{{- end }}
{{- end }}
{{- with $v.discovery.dns }}
- --discovery-dns={{ join "," . }}
{{- end }}
{{- if $v.discovery.engines }}
- --discovery-file=/etc/flash-indexer/config/engines.json
{{- end }}
{{- with $v.discovery.port }}
- --discovery-port={{ . }}
{{- end }}
{{- with $v.discovery.replayPort }}
- --discovery-replay-port={{ . }}
{{- end }}
{{- with $v.discovery.dataParallelSize }}
- --discovery-data-parallel-size={{ . }}
{{- end }}
{{- if not (kindIs "invalid" $v.discovery.graceSeconds) }}
- --discovery-grace-s={{ int64 $v.discovery.graceSeconds }}
{{- end }}
{{- if $v.listenEvents.enabled }}
- --listen-events=tcp://0.0.0.0:{{ $v.listenEvents.port }}
{{- with $v.listenEvents.models }}
- {{ printf "--pod-models=%s" (join "," .) | quote }}
{{- end }}
{{- end }}
{{- if $v.access.tokenSecret }}
- --token-file=/etc/flash-indexer/tokens/tokens.toml
{{- end }}
{{- if include "flash-indexer.hasJwt" . }}
{{- with $v.access.jwt }}
- --jwt-keys=/etc/flash-indexer/jwt/jwks.json
- {{ printf "--jwt-issuer=%s" .issuer | quote }}
- {{ printf "--jwt-audience=%s" .audience | quote }}
{{- with .algorithms }}
- --jwt-algorithms={{ join "," . }}
{{- end }}
{{- with .scopesClaim }}
- {{ printf "--jwt-scopes-claim=%s" . | quote }}
{{- end }}
{{- with .tenantsClaim }}
- {{ printf "--jwt-tenants-claim=%s" . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- if $v.access.limits }}
- --limits=/etc/flash-indexer/config/limits.toml
{{- end }}
{{- if $v.tls.secret }}
- --tls-cert=/etc/flash-indexer/tls/tls.crt
- --tls-key=/etc/flash-indexer/tls/tls.key
{{- if $v.tls.clientAuth }}
- --tls-client-ca=/etc/flash-indexer/tls/ca.crt
{{- end }}
{{- end }}
{{- $isOpen := not (or (include "flash-indexer.needsToken" .) $v.tls.clientAuth) }}
{{- if and $v.access.insecure (or $isOpen (include "flash-indexer.admitsEveryEngine" .)) }}
- --insecure
{{- end }}
{{- if $v.curve.keySecret }}
- --curve-key=/etc/flash-indexer/curve-key/indexer.key_secret
{{- if $v.curve.serverKeysSecret }}
- --curve-server-keys=/etc/flash-indexer/curve-server-keys/server-keys
{{- end }}
{{- if $v.curve.clientsSecret }}
- --curve-clients=/etc/flash-indexer/curve-clients/clients
{{- end }}
{{- end }}
{{- if include "flash-indexer.hasPeers" . }}
- --peers={{ include "flash-indexer.peerUrls" . }}
{{- if not (kindIs "invalid" $v.peers.checkIntervalSeconds) }}
- --peer-check-interval-s={{ int64 $v.peers.checkIntervalSeconds }}
{{- end }}
{{- if $v.peers.tokenSecret }}
- --peer-token-file=/etc/flash-indexer/peer-token/token
{{- end }}
{{- if $v.tls.secret }}
- --peer-ca=/etc/flash-indexer/tls/ca.crt
{{- if $v.tls.clientAuth }}
- --peer-cert=/etc/flash-indexer/tls/tls.crt
- --peer-key=/etc/flash-indexer/tls/tls.key
{{- end }}
{{- end }}
{{- end }}
{{- if $v.state.enabled }}
- --state-dir=/var/lib/flash-indexer
{{- with $v.state.intervalSeconds }}
- --state-interval-s={{ int64 . }}
{{- end }}
{{- end }}
{{- if $v.redis.url }}
- {{ printf "--redis=%s" $v.redis.url | quote }}
{{- with $v.redis.user }}
- {{ printf "--redis-user=%s" . | quote }}
{{- end }}
{{- if $v.redis.passwordSecret }}
- --redis-password-file=/etc/flash-indexer/redis-password/password
{{- end }}
{{- if $v.redis.caSecret }}
- --redis-ca=/etc/flash-indexer/redis-ca/ca.crt
{{- end }}
{{- with $v.redis.namespace }}
- {{ printf "--redis-namespace=%s" . | quote }}
{{- end }}
{{- end }}
{{- if $v.otlp.endpoint }}
- {{ printf "--otlp-endpoint=%s" $v.otlp.endpoint | quote }}
{{- if not (kindIs "invalid" $v.otlp.sampleRatio) }}
- --otlp-sample-ratio={{ $v.otlp.sampleRatio }}
{{- end }}
{{- if $v.otlp.caSecret }}
- --otlp-ca=/etc/flash-indexer/otlp-ca/ca.crt
{{- end }}
{{- end }}
{{- if $v.tokenizers.volume }}
- --tokenizer-dir=/var/lib/tokenizers
{{- end }}
{{- with $v.tokenizers.promptTextBytes }}
- --prompt-text-bytes={{ . }}
{{- end }}
{{- with $v.threads }}
- --threads={{ . }}
{{- end }}
{{- with $v.memoryMax }}
- --memory-max={{ . }}
{{- end }}
{{- end -}}
