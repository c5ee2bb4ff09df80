{{- /* Volumes besides the state, and where they are mounted. */ -}}
{{- define "flash-indexer.volumes" -}}
{{- if include "flash-indexer.hasConfig" . }}
- {name: config, configMap: {name: {{ include "flash-indexer.fullname" . | quote }}}}
{{- end }}
{{- if .Values.access.tokenSecret }}
- {name: tokens, secret: {secretName: {{ .Values.access.tokenSecret | quote }}}}
{{- end }}
{{- with .Values.access.jwt.keysSecret }}
- {name: jwt, secret: {secretName: {{ . | quote }}}}
{{- end }}
{{- with .Values.access.jwt.keysConfigMap }}
- {name: jwt, configMap: {name: {{ . | quote }}}}
{{- end }}
{{- if .Values.tls.secret }}
- {name: tls, secret: {secretName: {{ .Values.tls.secret | quote }}}}
{{- end }}
{{- if .Values.curve.keySecret }}
- {name: curve-key, secret: {secretName: {{ .Values.curve.keySecret | quote }}}}
{{- end }}
{{- if .Values.curve.serverKeysSecret }}
- {name: curve-server-keys, secret: {secretName: {{ .Values.curve.serverKeysSecret | quote }}}}
{{- end }}
{{- if .Values.curve.clientsSecret }}
- {name: curve-clients, secret: {secretName: {{ .Values.curve.clientsSecret | quote }}}}
{{- end }}
{{- if and (include "flash-indexer.hasPeers" .) .Values.peers.tokenSecret }}
- {name: peer-token, secret: {secretName: {{ .Values.peers.tokenSecret | quote }}}}
{{- end }}
{{- if and .Values.redis.url .Values.redis.passwordSecret }}
- {name: redis-password, secret: {secretName: {{ .Values.redis.passwordSecret | quote }}}}
{{- end }}
{{- if and .Values.redis.url .Values.redis.caSecret }}
- {name: redis-ca, secret: {secretName: {{ .Values.redis.caSecret | quote }}}}
{{- end }}
{{- if and .Values.otlp.endpoint .Values.otlp.caSecret }}
- {name: otlp-ca, secret: {secretName: {{ .Values.otlp.caSecret | quote }}}}
{{- end }}
{{- with .Values.tokenizers.volume }}
- name: tokenizers
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "flash-indexer.volumeMounts" -}}
{{- if .Values.state.enabled }}
- {name: state, mountPath: /var/lib/flash-indexer}
{{- end }}
{{- if include "flash-indexer.hasConfig" . }}
- {name: config, mountPath: /etc/flash-indexer/config, readOnly: true}
{{- end }}
{{- if .Values.access.tokenSecret }}
- {name: tokens, mountPath: /etc/flash-indexer/tokens, readOnly: true}
{{- end }}
{{- if include "flash-indexer.hasJwt" . }}
- {name: jwt, mountPath: /etc/flash-indexer/jwt, readOnly: true}
{{- end }}
{{- if .Values.tls.secret }}
- {name: tls, mountPath: /etc/flash-indexer/tls, readOnly: true}
{{- end }}
{{- if .Values.curve.keySecret }}
- {name: curve-key, mountPath: /etc/flash-indexer/curve-key, readOnly: true}
{{- end }}
{{- if .Values.curve.serverKeysSecret }}
- {name: curve-server-keys, mountPath: /etc/flash-indexer/curve-server-keys, readOnly: true}
{{- end }}
{{- if .Values.curve.clientsSecret }}
- {name: curve-clients, mountPath: /etc/flash-indexer/curve-clients, readOnly: true}
{{- end }}
{{- if and (include "flash-indexer.hasPeers" .) .Values.peers.tokenSecret }}
- {name: peer-token, mountPath: /etc/flash-indexer/peer-token, readOnly: true}
{{- end }}
{{- if and .Values.redis.url .Values.redis.passwordSecret }}
- {name: redis-password, mountPath: /etc/flash-indexer/redis-password, readOnly: true}
{{- end }}
{{- if and .Values.redis.url .Values.redis.caSecret }}
- {name: redis-ca, mountPath: /etc/flash-indexer/redis-ca, readOnly: true}
{{- end }}
{{- if and .Values.otlp.endpoint .Values.otlp.caSecret }}
- {name: otlp-ca, mountPath: /etc/flash-indexer/otlp-ca, readOnly: true}
{{- end }}
{{- if .Values.tokenizers.volume }}
- {name: tokenizers, mountPath: /var/lib/tokenizers, readOnly: true}
{{- end }}
{{- with .Values.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}
