{{- define "flash-indexer.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- /* 52 characters: the names of the headless service and of pods add a suffix. */ -}}
{{- define "flash-indexer.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" -}}
{{- else if contains (include "flash-indexer.name" .) .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "flash-indexer.name" .) | trunc 52 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "flash-indexer.selectorLabels" -}}
app.kubernetes.io/name: {{ include "flash-indexer.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end -}}

{{- define "flash-indexer.labels" -}}
{{ include "flash-indexer.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "flash-indexer.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "flash-indexer.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- define "flash-indexer.scheme" -}}
{{- if .Values.tls.secret -}}https{{- else -}}http{{- end -}}
{{- end -}}

{{- define "flash-indexer.hasPeers" -}}
{{- if and .Values.peers.enabled (gt (int .Values.replicas) 1) -}}true{{- end -}}
{{- end -}}

{{- define "flash-indexer.hasConfig" -}}
{{- if or .Values.discovery.engines .Values.access.limits -}}true{{- end -}}
{{- end -}}

{{- define "flash-indexer.hasJwt" -}}
{{- if or .Values.access.jwt.keysSecret .Values.access.jwt.keysConfigMap -}}true{{- end -}}
{{- end -}}

{{- /* Whether clients need a bearer token: one of the token file, or a JWT. */ -}}
{{- define "flash-indexer.needsToken" -}}
{{- if or .Values.access.tokenSecret (include "flash-indexer.hasJwt" .) -}}true{{- end -}}
{{- end -}}

{{- /* Whether engines connect to the service without a key. */ -}}
{{- define "flash-indexer.admitsEveryEngine" -}}
{{- $hasKeys := or .Values.curve.clientsSecret (contains "--curve-clients" (join " " .Values.extraArgs)) -}}
{{- if and .Values.listenEvents.enabled (not $hasKeys) -}}true{{- end -}}
{{- end -}}

{{- /* URLs of all replicas. The list is the same in every pod, so it has the pod itself, which
skips itself. */ -}}
{{- define "flash-indexer.peerUrls" -}}
{{- $urls := list -}}
{{- $name := include "flash-indexer.fullname" . -}}
{{- range $replica := until (int .Values.replicas) -}}
{{- $host := printf "%s-%d.%s-peers.%s.svc" $name $replica $name $.Release.Namespace -}}
{{- $urls = append $urls (printf "%s://%s:%v" (include "flash-indexer.scheme" $) $host $.Values.http.port) -}}
{{- end -}}
{{- join "," $urls -}}
{{- end -}}

{{- /* Combinations of values that the service would refuse, or that would be silently unsafe. */ -}}
{{- define "flash-indexer.check" -}}
{{- $v := .Values -}}
{{- $jwt := $v.access.jwt -}}
{{- $hasJwt := include "flash-indexer.hasJwt" . -}}
{{- $needsToken := include "flash-indexer.needsToken" . -}}
{{- if and $jwt.keysSecret $jwt.keysConfigMap -}}
{{- fail "failed to render the chart: JWTs have one key set; set access.jwt.keysSecret or access.jwt.keysConfigMap" -}}
{{- end -}}
{{- if and $hasJwt (not (and $jwt.issuer $jwt.audience)) -}}
{{- fail "failed to render the chart: JWTs of every issuer and audience would be admitted; set access.jwt.issuer and access.jwt.audience" -}}
{{- end -}}
{{- if and (not $hasJwt) (or $jwt.issuer $jwt.audience $jwt.algorithms $jwt.scopesClaim $jwt.tenantsClaim) -}}
{{- fail "failed to render the chart: JWTs have no keys; set access.jwt.keysSecret or access.jwt.keysConfigMap" -}}
{{- end -}}
{{- if not (or $needsToken $v.tls.clientAuth $v.access.insecure) -}}
{{- fail "failed to render the chart: any host could use the service; set access.tokenSecret, access.jwt, tls.clientAuth or access.insecure" -}}
{{- end -}}
{{- if and (include "flash-indexer.admitsEveryEngine" .) (not $v.access.insecure) -}}
{{- fail "failed to render the chart: any host could add and clear blocks at listenEvents; set curve.clientsSecret, or access.insecure and networkPolicy.engines" -}}
{{- end -}}
{{- if and $v.tls.clientAuth (not $v.tls.secret) -}}
{{- fail "failed to render the chart: tls.clientAuth has no certificates; set tls.secret" -}}
{{- end -}}
{{- if and $needsToken (include "flash-indexer.hasPeers" .) (not $v.peers.tokenSecret) -}}
{{- fail "failed to render the chart: replicas would refuse each other without a token; set peers.tokenSecret, or peers.enabled=false" -}}
{{- end -}}
{{- if and $needsToken $v.serviceMonitor.enabled (not $v.serviceMonitor.tokenSecret) -}}
{{- fail "failed to render the chart: the service would refuse scrapes without a token; set serviceMonitor.tokenSecret" -}}
{{- end -}}
{{- if and $v.tls.secret $v.serviceMonitor.enabled (not $v.serviceMonitor.tlsServerName) -}}
{{- fail "failed to render the chart: Prometheus scrapes addresses of pods, which no certificate names; set serviceMonitor.tlsServerName" -}}
{{- end -}}
{{- if and $v.tls.clientAuth $v.serviceMonitor.enabled (not $v.serviceMonitor.tlsSecret) -}}
{{- fail "failed to render the chart: the service would refuse scrapes without a certificate; set serviceMonitor.tlsSecret" -}}
{{- end -}}
{{- if and $v.listenEvents.enabled (gt (int $v.replicas) 1) -}}
{{- fail "failed to render the chart: an engine that connects reaches one replica only; set replicas=1, or use discovery" -}}
{{- end -}}
{{- if and (or $v.curve.serverKeysSecret $v.curve.clientsSecret) (not $v.curve.keySecret) -}}
{{- fail "failed to render the chart: the service has no CURVE key of its own; set curve.keySecret" -}}
{{- end -}}
{{- if and $v.curve.clientsSecret (not $v.listenEvents.enabled) -}}
{{- fail "failed to render the chart: no engine connects to the service; set listenEvents.enabled, or no curve.clientsSecret" -}}
{{- end -}}
{{- if and $v.curve.keySecret $v.listenEvents.enabled (not $v.curve.clientsSecret) -}}
{{- fail "failed to render the chart: every engine could connect in spite of CURVE; set curve.clientsSecret" -}}
{{- end -}}
{{- if and $v.curve.keySecret (not (or $v.curve.serverKeysSecret $v.curve.clientsSecret)) -}}
{{- fail "failed to render the chart: a CURVE key has no effect alone; set curve.serverKeysSecret or curve.clientsSecret" -}}
{{- end -}}
{{- if and (or $v.discovery.kubernetes.selector $v.discovery.dns $v.discovery.engines) (not $v.engines.blockSize) -}}
{{- fail "failed to render the chart: discovered engines need a block size; set engines.blockSize" -}}
{{- end -}}
{{- $hasTokenizer := or $v.tokenizers.volume (regexMatch "--tokenizer(-dir|-hub)?( |=|$)" (join " " $v.extraArgs)) -}}
{{- range $v.extraEnv -}}
{{- $hasTokenizer = or $hasTokenizer (regexMatch "^FLASH_INDEXER_TOKENIZER(_DIR|_HUB)?$" .name) -}}
{{- end -}}
{{- if and $v.tokenizers.promptTextBytes (not $hasTokenizer) -}}
{{- fail "failed to render the chart: no tokenizer makes text of tokens; set tokenizers.volume, or no tokenizers.promptTextBytes" -}}
{{- end -}}
{{- $ports := list (int $v.http.port) -}}
{{- if $v.grpc.enabled -}}{{- $ports = append $ports (int $v.grpc.port) -}}{{- end -}}
{{- if $v.listenEvents.enabled -}}{{- $ports = append $ports (int $v.listenEvents.port) -}}{{- end -}}
{{- if ne (len $ports) (len (uniq $ports)) -}}
{{- fail "failed to render the chart: HTTP, gRPC and listenEvents need a port each; set http.port, grpc.port or listenEvents.port" -}}
{{- end -}}
{{- $fullname := include "flash-indexer.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $fullname) -}}
{{- fail (printf "failed to render the chart: %s is not a name of a Service (a letter, then letters, digits and -); set fullnameOverride" $fullname) -}}
{{- end -}}
{{- $names := list -}}
{{- range fromYamlArray (include "flash-indexer.args" .) -}}
{{- $names = append $names (splitList "=" . | first) -}}
{{- end -}}
{{- /* `serve` accepts each option once, except for lists, to which extraArgs may add. */ -}}
{{- $lists := list "--discovery-dns" "--discovery-file" "--engine-networks" "--jwt-algorithms" "--listen-events" "--peers" "--pod-models" -}}
{{- range $v.extraArgs -}}
{{- $name := splitList "=" . | first -}}
{{- if and (has $name $names) (not (has $name $lists)) -}}
{{- fail (printf "failed to render the chart: extraArgs has %s, which the chart sets; remove it, and set the chart's own value" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
