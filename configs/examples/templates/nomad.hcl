# A block of a task of Nomad, which renders it as consul-template does, for a service of
# Nomad's own discovery. The job mounts /etc/svcproxy of the host at /svcproxy.
template {
  destination = "/svcproxy/web.endpoints.toml"
  change_mode = "noop"
  data        = <<EOT
endpoints = [
{{- range nomadService "web" }}
  "{{ .Address }}:{{ .Port }}",
{{- end }}
]
EOT
}
