# consul-template -config consul-template.hcl
#
# It renames what it has written into its place. With many changes at once, wait merges
# them; svcproxy takes each within milliseconds.
template {
  source      = "/etc/consul-template/web.endpoints.toml.ctmpl"
  destination = "/etc/svcproxy/web.endpoints.toml"
  perms       = 0644
  wait {
    min = "200ms"
    max = "2s"
  }
}
