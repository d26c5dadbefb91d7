# A Rails application with Doorkeeper and its OpenID Connect extension, with a database of its own.
#
#     ruby app.rb <port> <directory> <options as one JSON object>
#
# It says "ready" once it listens. A request to /end-sessions revokes all tokens, one to /count-sessions tells how many are not.

require "json"
require "logger"
require "openssl"
require "rails"
require "active_record/railtie"
require "action_controller/railtie"
require "action_view/railtie"
require "doorkeeper"
require "doorkeeper/openid_connect"
require "rack/handler/puma"

PORT, DIRECTORY, OPTIONS = ARGV[0].to_i, ARGV[1], JSON.parse(ARGV[2])
ENV["RAILS_ENV"] = "production"
ENV["DATABASE_URL"] = "sqlite3:#{DIRECTORY}/database.sqlite3"

User = Struct.new(:id)

class Site < Rails::Application
  config.root = DIRECTORY
  config.eager_load = false
  config.secret_key_base = "of a test"
  config.logger = Logger.new($stderr)
  config.log_level = :error
  config.hosts.clear
  config.consider_all_requests_local = true
end

Doorkeeper.configure do
  orm :active_record
  base_controller "ActionController::Base"
  resource_owner_authenticator do
    session[:user] ? User.new(session[:user]) : redirect_to("/login?" + { return_to: request.fullpath }.to_query)
  end
  default_scopes :read
  optional_scopes :openid
  use_refresh_token
  access_token_expires_in OPTIONS["access_token_lifetime"].seconds
  force_ssl_in_redirect_uri false
  grant_flows %w[authorization_code client_credentials]
end

Doorkeeper::OpenidConnect.configure do
  issuer OPTIONS["issuer"]
  signing_key OpenSSL::PKey::RSA.new(2048).to_pem
  subject_types_supported [:public]
  resource_owner_from_access_token { |token| User.new(token.resource_owner_id) }
  auth_time_from_resource_owner { |_| Time.now }
  reauthenticate_resource_owner { |_, _| nil }
  subject { |owner, _| "user-#{owner.id}" }
end

Site.initialize!

class SessionsController < ActionController::Base
  def page
    render inline: <<~PAGE
      <%= form_with url: request.fullpath, method: :post, local: true do |form| %>
        <%= form.text_field :username %><%= form.password_field :password %><%= form.submit "Log in" %>
      <% end %>
    PAGE
  end

  def create
    return page unless params[:username] == "ada" && params[:password] == "the password"
    session[:user] = 1
    redirect_to params[:return_to]
  end
end

class EndingsController < ActionController::Base
  def create
    Doorkeeper::AccessToken.where(revoked_at: nil).update_all(revoked_at: Time.now.utc)
    head :no_content
  end

  def count
    render plain: Doorkeeper::AccessToken.where(revoked_at: nil).where.not(refresh_token: nil).count
  end
end

ActiveRecord::Migration.verbose = false
ActiveRecord::Schema.define do
  create_table :oauth_applications do |table|
    table.string :name, null: false
    table.string :uid, null: false, index: { unique: true }
    table.string :secret, null: false
    table.text :redirect_uri, null: false
    table.string :scopes, null: false, default: ""
    table.boolean :confidential, null: false, default: true
    table.timestamps null: false
  end
  create_table :oauth_access_grants do |table|
    table.references :resource_owner, null: false
    table.references :application, null: false
    table.string :token, null: false, index: { unique: true }
    table.integer :expires_in, null: false
    table.text :redirect_uri, null: false
    table.datetime :created_at, null: false
    table.datetime :revoked_at
    table.string :scopes, null: false, default: ""
    table.string :code_challenge
    table.string :code_challenge_method
  end
  create_table :oauth_access_tokens do |table|
    table.references :resource_owner
    table.references :application, null: false
    table.string :token, null: false, index: { unique: true }
    table.string :refresh_token, index: { unique: true }
    table.integer :expires_in
    table.datetime :revoked_at
    table.datetime :created_at, null: false
    table.string :scopes
    table.string :previous_refresh_token, null: false, default: ""
  end
  create_table :oauth_openid_requests do |table|
    table.references :access_grant, null: false
    table.string :nonce, null: false
  end
end

Rails.application.routes.draw do
  use_doorkeeper
  use_doorkeeper_openid_connect
  get "/login", to: "sessions#page"
  post "/login", to: "sessions#create"
  get "/end-sessions", to: "endings#create"
  get "/count-sessions", to: "endings#count"
end
# The page asks for a style sheet that only an asset pipeline has.
Doorkeeper::AuthorizationsController.layout false

Doorkeeper::Application.create!(
  name: "The client", uid: OPTIONS["client_id"], secret: OPTIONS["client_secret"],
  redirect_uri: OPTIONS["redirect_uri"], scopes: "read openid"
)
Rack::Handler::Puma.run(
  Rails.application, Host: "127.0.0.1", Port: PORT, Threads: "1:4", Silent: true, Verbose: false
) { puts "ready"; $stdout.flush }
